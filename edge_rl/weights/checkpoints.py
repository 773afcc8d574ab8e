"""Save a run so that it can be resumed exactly: adapter, optimizer, and the JSON state of everything else.

A checkpoint is a folder `checkpoints/step-N` that is written beside and renamed: it exists whole or not at all. Knows peft
folders and torch files (read without pickle code); what the state means is the caller's.
"""

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from pydantic import TypeAdapter

from edge_rl.errors import CheckpointError
from edge_rl.types import Group
from edge_rl.weights.adapters import load_adapter_weights, replace_folder, save_adapter

_GROUPS = TypeAdapter(list[Group])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a resume continues from."""

    step: int
    """Optimizer steps of the reinforcement stage that were done."""
    learner: Mapping[str, Any]
    """State of the optimizer."""
    state: Mapping[str, Any]
    """JSON state: sampler, best validation, seconds so far."""
    carried: list[Group]
    """Groups under way."""
    folder: Path


def save_checkpoint(  # noqa: PLR0913  (a run wires it by keyword)
    run_dir: Path,
    model: PeftModel,
    *,
    step: int,
    learner: Mapping[str, Any],
    state: Mapping[str, Any],
    carried: list[Group],
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write `checkpoints/step-<step>`; return its folder. `facts` of the base as in `save_adapter`.

    Raises: CheckpointError where the disk is full or the folder cannot be written; older checkpoints stay.
    """
    parent = run_dir / "checkpoints"
    target = parent / f"step-{step}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".step-", suffix=".partial", dir=parent))
        try:
            save_adapter(model, scratch / "adapter", facts=facts)
            torch.save(dict(learner), scratch / "learner.pt")
            (scratch / "carried.json").write_bytes(_GROUPS.dump_json(carried))
            content = json.dumps({"step": step, **state}, indent=1)
            (scratch / "state.json").write_text(content, encoding="utf-8")
            for path in scratch.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
            replace_folder(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot write checkpoint {target}: {error}; make room, then run the same command again"
        ) from error
    return target


def load_checkpoint(folder: Path, model: PeftModel) -> Checkpoint:
    """Copy the adapter of a checkpoint into the model; return the rest.

    Raises: CheckpointError where it is damaged or belongs to another base.
    """
    load_adapter_weights(model, folder / "adapter")
    try:
        learner = torch.load(folder / "learner.pt", weights_only=True)
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        carried = _GROUPS.validate_json((folder / "carried.json").read_bytes())
        return Checkpoint(step=int(state["step"]), learner=learner, state=state, carried=carried, folder=folder)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"cannot read checkpoint {folder}: {reason}; delete it to resume from the one before"
        ) from error


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the folder of the newest checkpoint, None if there is none."""
    found = _by_step(run_dir)
    return found[-1] if found else None


def remove_old_checkpoints(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and what a crash left half-written."""
    for folder in _by_step(run_dir)[:-keep]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in (run_dir / "checkpoints").glob(".step-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _by_step(run_dir: Path) -> list[Path]:
    folders = [path for path in (run_dir / "checkpoints").glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")))
