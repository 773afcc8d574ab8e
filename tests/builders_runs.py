"""A whole training run small enough for a test: a tiny random model, a task of a dozen questions, and the command line.

task = make_task(tmp_path)                     # model folder, samples, folder of runs
edge_rl.train.main(task.arguments("--steps", "3"))
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge_rl.monitor.progress import Progress
from edge_rl.types import StepReport
from tests.builders_models import save_tiny_model

SETTINGS: Mapping[str, Any] = {
    "model.dtype": "float32",
    "model.rank": 8,
    "model.alpha": 16.0,
    "data.system": "Choose.",
    "rollout.group_size": 4,
    "rollout.prompts_per_step": 3,
    "rollout.max_tokens": 48,
    "rollout.chunk_tokens": 48,
    "rollout.slots": 16,
    "learning.learning_rate": 1e-2,
    "learning.num_steps": 3,
    "warm_start.epochs": 20,
    "warm_start.batch_size": 6,
    "warm_start.learning_rate": 2e-2,
    "evaluation.samples_per_question": 2,
    "evaluation.questions_at_8": 1,
    "evaluation.validation_samples": 2,
    "evaluation.every_steps": 2,
    "evaluation.bootstrap": 100,
    "export.formats": [],
    "run.name": "tiny",
    "run.checkpoint_every_steps": 1,
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """Where a tiny run lies, and how it is started."""

    model: Path
    data: Path
    runs: Path

    @property
    def run_dir(self) -> Path:
        """Folder of the run that `arguments` names."""
        return self.runs / "tiny"

    def arguments(self, *more: str, **settings: Any) -> list[str]:
        """Return the command line; `settings` as section__key=value replace those of SETTINGS."""
        changed = {key.replace("__", ".", 1): value for key, value in settings.items()}
        values = {**SETTINGS, "run.folder": str(self.runs), **changed}
        flags = [part for key, value in values.items() for part in ("--set", f"{key}={_toml(value)}")]
        return ["--model", str(self.model), "--data", str(self.data), *flags, *more]


def make_task(folder: Path, rows: list[dict[str, Any]] | None = None) -> Task:
    """Write the model and the samples; nothing is trained yet."""
    task = Task(model=folder / "model", data=folder / "task.jsonl", runs=folder / "runs")
    folder.mkdir(parents=True, exist_ok=True)
    save_tiny_model(task.model)
    write_rows(task.data, samples() if rows is None else rows)
    return task


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write samples as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def samples() -> list[dict[str, Any]]:
    """Return questions whose answer is A or B for no reason, so that a model is right about every second time."""
    rows: list[dict[str, Any]] = []
    for index in range(6):
        answer = "AB"[index % 2]
        trace = [{"author": "policy", "text": f"\\boxed{{{answer}}}"}]
        if index >= 4:
            trace = [
                {"author": "policy", "text": "```python\nprint(1)\n```"},
                {"author": "tool", "text": "\n```output\n1\n```\n"},
                *trace,
            ]
        rows.append(_row(f"hinted-{index}", answer, "train") | {"trace": trace, "tools": ["python"]})
    rows += [_row(f"train-{index}", "AB"[index % 2], "train") for index in range(6)]
    rows += [_row(f"validation-{index}", "AB"[index % 2], "validation") for index in range(2)]
    rows += [_row(f"test-{index}", "AB"[index % 2], "test") for index in range(4)]
    return rows


def after_step(number: int, action: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Do something when step `number` (from 1) was taken."""
    step = Progress.step

    def watched(self: Progress, report: StepReport, num_steps: int) -> None:
        step(self, report, num_steps)
        if report.step + 1 == number:
            action()

    patch.setattr(Progress, "step", watched)


def _row(name: str, answer: str, split: str) -> dict[str, Any]:
    return {"id": name, "question": "What is the answer?", "answer": answer, "kind": "choice", "split": split}


def _toml(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value
