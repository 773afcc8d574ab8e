"""Open the folder of a run: one process at a time, one configuration for good, and a manifest of what made it."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from edge_rl.config import Config, build, to_toml
from edge_rl.errors import CheckpointError, ConfigError, DataError
from edge_rl.monitor.metrics import write_text_atomically

PACKAGES = ("edge-rl", "torch", "transformers", "peft", "trl", "accelerate", "datasets", "tokenizers", "numpy")


def open_run_folder(config: Config) -> tuple[Path, FileLock]:
    """Return the run's folder and the lock that its process holds; write config.toml and manifest.json into a new one.

    Raises: ConfigError if another process trains there or the folder belongs to other settings; CheckpointError where it
    cannot be written.
    """
    run_dir = config.run_dir
    lock = FileLock(run_dir / ".lock", timeout=0)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        path = run_dir / "config.toml"
        if path.exists():
            _check_same(config, path)
        else:
            write_text_atomically(run_dir / "manifest.json", json.dumps(manifest(config), indent=2) + "\n")
            write_text_atomically(path, to_toml(config))
    except Timeout:
        raise ConfigError(
            f"another process works on {run_dir}; wait for it, stop it (echo stop > {run_dir}/control) or choose --name"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot write {run_dir}: {error.strerror or error}; make room or permit it") from error
    return run_dir, lock


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


def _check_same(config: Config, path: Path) -> None:
    """The same command resumes; another configuration in the same folder would mix two runs."""
    ours, theirs = config.model_dump(mode="json"), read_config(path.parent).model_dump(mode="json")
    for section, values in ours.items():
        keys = values if isinstance(values, dict) else {"": values}
        for key in keys:
            new, old = (
                tree[section].get(key) if isinstance(tree[section], dict) else tree[section] for tree in (ours, theirs)
            )
            if new != old:
                dotted = f"{section}.{key}" if key else section
                raise ConfigError(
                    f"{path.parent} was begun with {dotted} = {old!r}, now it is {new!r}; "
                    "give the same settings to resume, or another --name for a new run"
                )


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
