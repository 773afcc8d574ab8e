"""Open the folder of a run: one process at a time, one configuration for good, and a manifest of what made it."""

import errno
import hashlib
import importlib.metadata
import json
import platform
import subprocess
import time
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock, Timeout

from edge_rl.config import Config, build, to_toml
from edge_rl.errors import CheckpointError, ConfigError, DataError
from edge_rl.monitor.metrics import write_text_atomically
from edge_rl.weights.adapters import restore_folders

PACKAGES = ("edge-rl", "torch", "transformers", "peft", "trl", "accelerate", "datasets", "tokenizers", "numpy")

DISK_ERRORS = frozenset(
    [
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.EEXIST,
        errno.ENOTDIR,
    ]
)
"""What a person can mend; any other error of the system is a bug and keeps its traceback."""


@contextmanager
def open_run_folder(config: Config) -> Generator[Path]:
    """Hold the run's folder for the length of a `with` block; write config.toml and manifest.json into a new one.

    A folder in which nothing was made yet counts as new: whoever mends a mistake in the settings may keep the name.
    Raises: ConfigError if another process trains there or the folder belongs to other settings; CheckpointError where it
    cannot be written.
    """
    run_dir = config.run_dir
    lock = FileLock(run_dir / ".lock", timeout=0)
    try:
        with guard_disk(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            restore_folders(run_dir)
            path = run_dir / "config.toml"
            if path.exists() and _has_begun(run_dir):
                _check_same(config, path)
            else:
                write_text_atomically(run_dir / "manifest.json", json.dumps(manifest(config), indent=2) + "\n")
                write_text_atomically(path, to_toml(config))
    except Timeout:
        raise ConfigError(
            f"another process works on {run_dir}; wait for it, stop it (echo stop > {run_dir}/control) or choose --name"
        ) from None
    except BaseException:
        lock.release()
        raise
    try:
        yield run_dir
    finally:
        lock.release()


@contextmanager
def guard_disk(place: Path) -> Generator[None]:
    """Say in one line that a disk is full or may not be written; what is on it stays as it was.

    Raises: CheckpointError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise CheckpointError(
            f"cannot write {error.filename or place}: {error.strerror}; make room or permit it, then run the same command "
            "again: it goes on from the last checkpoint"
        ) from error


def read_config(run_dir: Path) -> Config:
    """Return the configuration of a run.

    Raises: DataError if the folder is no run.
    """
    path = run_dir / "config.toml"
    try:
        return build(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"{run_dir} is no run folder ({path.name}: {error.strerror}); expected runs/<name>") from error
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: no valid TOML: {error}") from error


def manifest(config: Config) -> dict[str, Any]:
    """Return what made a run: versions, hardware, data and code, as JSON values."""
    data = Path(config.data.path)
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seed": config.run.seed,
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads(), "gpu": _gpu()},
        "data": {"path": str(data), "sha256": hashlib.sha256(data.read_bytes()).hexdigest() if data.exists() else None},
        "commit": _commit(),
    }


def _has_begun(run_dir: Path) -> bool:
    """Whether anything lies there that the settings decided."""
    made = ("warm_start/adapter", "rejection/adapter", "preference", "checkpoints", "eval", "best")
    return any((run_dir / name).exists() for name in made)


def _check_same(config: Config, path: Path) -> None:
    """The same command resumes; another configuration in the same folder would mix two runs."""
    ours, theirs = config.model_dump(mode="json"), read_config(path.parent).model_dump(mode="json")
    new, old = _flat(ours), _flat(theirs)
    for dotted in sorted(new.keys() | old.keys()):
        if new.get(dotted) != old.get(dotted):
            raise ConfigError(
                f"{path.parent} was begun with {dotted} = {old.get(dotted)!r}, now it is {new.get(dotted)!r}; "
                "give the same settings to resume, or another --name for a new run"
            )


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return "section.key" -> value."""
    flat: dict[str, Any] = {}
    for section, values in tree.items():
        if isinstance(values, Mapping):
            flat |= {f"{section}.{key}": value for key, value in cast(Mapping[str, Any], values).items()}
        else:
            flat[section] = values
    return flat


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> str | None:
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _commit() -> str | None:
    """Return the commit of the checkout that the package lies in; None outside of one."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.strip() or None
