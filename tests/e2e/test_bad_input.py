"""What a user can do wrong costs one line on stderr and exit status 2: no traceback, and nothing of a run is lost."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch

from edge_rl.config import resolve
from edge_rl.monitor.metrics import read_metrics
from edge_rl.monitor.progress import Progress
from edge_rl.pipeline.run_folder import open_run_folder
from edge_rl.train import main
from edge_rl.types import StepReport
from tests.builders_runs import Task, make_task, samples, write_rows

Rows = list[dict[str, Any]]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return make_task(tmp_path)


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says what is wrong; progress goes to stderr, too."""
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    assert err.splitlines()[-1] == lines[0]
    assert "Traceback" not in err + out
    return lines[0]


# -- before anything is trained ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "smolm2-135m"], ["smolm2-135m", "did you mean 'smollm2-135m'?"]),
        (["--model", "./absent"], ["no such folder"]),
        (["--model", "someone/giant-7B"], ["7.0B", "--allow-large"]),
        (["--data", "absent.jsonl"], ["absent.jsonl does not exist", "data.path"]),
        (["--set", "rollout.group_sise=4"], ["unknown key rollout.group_sise", "did you mean 'group_size'?"]),
        (["--set", "rollout.group_size=1"], ["rollout.group_size", "greater than or equal to 2"]),
        (["--set", "rollout.chunk_tokens=4096"], ["chunk_tokens (4096) exceeds max_tokens"]),
        (["--set", "export.formats=['f16']"], ["export.check_format", "q8_0"]),
        (["--recipe", "defualt"], ["did you mean 'default'?"]),
    ],
    ids=["alias", "folder", "over-3B", "data", "key", "value", "combination", "check-format", "recipe"],
)
def test_mistake_in_the_command(
    arguments: list[str], words: list[str], task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(task.arguments(*arguments)) == 2
    error = _error(capsys)
    assert all(word in error for word in words), error


def _without_answer(rows: Rows) -> Rows:
    return [{key: value for key, value in rows[0].items() if key != "answer"}, *rows[1:]]


def _wrong_gold(rows: Rows) -> Rows:
    return [*rows, {"id": "odd", "question": "How many?", "answer": "many", "kind": "numeric"}]


def _unknown_kind(rows: Rows) -> Rows:
    return [*rows, {"id": "odd", "question": "How many?", "answer": "1", "kind": "numerical"}]


def _no_validation(rows: Rows) -> Rows:
    return [row for row in rows if row["split"] != "validation"]


def _long_question(rows: Rows) -> Rows:
    return [*rows, {"id": "long", "question": "zq " * 1000, "answer": "A", "kind": "choice"}]


def _no_traces(rows: Rows) -> Rows:
    return [{key: value for key, value in row.items() if key != "trace"} for row in rows]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_answer, ["task.jsonl:1", "answer"]),
        (_wrong_gold, ["sample odd", "numeric", "many"]),
        (_unknown_kind, ["numerical", "did you mean 'numeric'?"]),
        (_no_validation, ["no sample has split 'validation'"]),
        (_long_question, ["long (", "rollout.max_tokens"]),
        (_no_traces, ["traces", "warm_start.kind=none"]),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_mistake_in_the_samples(
    change: Callable[[Rows], Rows], words: list[str], task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(task.data, change(samples()))
    assert main(task.arguments()) == 2
    error = _error(capsys)
    assert all(word in error for word in words), error


def test_samples_that_are_no_json(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.data.write_text("id,question,answer\n")
    assert main(task.arguments()) == 2
    assert "task.jsonl:1: no valid JSON" in _error(capsys)


def test_model_folder_without_weights(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    for path in task.model.glob("*.safetensors"):
        path.unlink()
    assert main(task.arguments()) == 2
    assert "cannot load" in _error(capsys)


def test_another_process_on_the_folder(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.run_dir.mkdir(parents=True)
    with FileLock(task.run_dir / ".lock"):
        assert main(task.arguments()) == 2
    assert "another process works on" in _error(capsys)


def test_other_settings_in_the_same_folder(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    assignments = [part for part in task.arguments() if "=" in part]
    names = {"model.name": str(task.model), "data.path": str(task.data)}
    with open_run_folder(resolve("default", names, assignments)) as run_dir:
        (run_dir / "checkpoints").mkdir()
    for _ in range(2):  # the first refusal must not keep the folder locked
        assert main(task.arguments("--seed", "7")) == 2
        error = _error(capsys)
        assert "run.seed = 0" in error
        assert "--name" in error


def test_mended_mistake_may_keep_the_name(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(task.arguments("--data", "absent.jsonl")) == 2
    assert "absent.jsonl" in _error(capsys)
    write_rows(task.data, _no_validation(samples()))
    assert main(task.arguments()) == 2
    assert "no sample has split 'validation'" in _error(capsys)


def test_file_in_the_place_of_the_folder(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    task.runs.write_text("no folder")
    assert main(task.arguments()) == 2
    assert "cannot write" in _error(capsys)


# -- a disk that is full, in the middle of a run -----------------------------------------------------------------------


def _full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def _fill_metrics(patch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise _full()

    patch.setattr(os, "fsync", fsync)


def _fill_optimizer(patch: pytest.MonkeyPatch) -> None:
    def save(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    patch.setattr(torch, "save", save)


def _fill_adapter(patch: pytest.MonkeyPatch) -> None:
    def save_file(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    patch.setattr(safetensors_torch, "save_file", save_file)


def _fill_anything(patch: pytest.MonkeyPatch) -> None:
    def write_text(self: Path, *args: Any, **kwargs: Any) -> int:
        raise _full()

    patch.setattr(Path, "write_text", write_text)


@pytest.mark.slow
@pytest.mark.parametrize("fill", [_fill_metrics, _fill_optimizer, _fill_adapter, _fill_anything])
def test_full_disk_loses_no_checkpoint(
    fill: Callable[[pytest.MonkeyPatch], None],
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = Progress.step
    with monkeypatch.context() as patch:

        def watched(self: Progress, report: StepReport, num_steps: int) -> None:
            step(self, report, num_steps)
            if report.step == 1:
                fill(patch)

        patch.setattr(Progress, "step", watched)
        assert main(task.arguments(evaluation__every_steps=9)) == 2
    error = _error(capsys)
    assert "cannot write" in error
    assert "again" in error
    assert [path.name for path in (task.run_dir / "checkpoints").iterdir()] == ["step-1"]
    assert main(task.arguments(evaluation__every_steps=9)) == 0
    assert [report.step for report in read_metrics(task.run_dir)] == [0, 1, 2]
    assert json.loads((task.run_dir / "report.json").read_text(encoding="utf-8"))["rows"]
