"""Rollouts to disk, then training from disk: the same adapter as without, an age limit, and an empty queue."""

import json
from pathlib import Path

import pytest

from edge_rl.monitor.metrics import read_metrics
from edge_rl.rollout.disk_queue import RolloutQueue
from edge_rl.train import main
from tests.builders_runs import Task, make_task

pytestmark = pytest.mark.slow

ONE = {"learning__num_steps": 1}


def _adapter(task: Task, step: int) -> bytes:
    return (task.run_dir / "checkpoints" / f"step-{step}" / "adapter" / "adapter_model.safetensors").read_bytes()


def test_one_step_from_disk_is_one_step(tmp_path: Path) -> None:
    """Groups of the policy as it is, written and read, give the adapter of a step that never touched the disk."""
    whole, parts = make_task(tmp_path / "whole"), make_task(tmp_path / "parts")
    assert main(whole.arguments(**ONE)) == 0
    queue = tmp_path / "queue"
    assert main(parts.arguments("--rollouts-to", str(queue), "--groups", "3", **ONE)) == 0
    assert len(RolloutQueue(queue)) == 3
    assert not (parts.run_dir / "report.json").exists()
    assert main(parts.arguments("--rollouts-from", str(queue), **ONE)) == 0
    assert _adapter(parts, 1) == _adapter(whole, 1)
    assert (parts.run_dir / "report.json").exists()
    assert len(list(queue.glob("*.json"))) == 0  # a checkpoint holds what came of them


def test_later_steps_train_on_older_rollouts_and_an_empty_queue_ends_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(tmp_path)
    queue = tmp_path / "queue"
    settings = {"learning__num_steps": 3}
    assert main(task.arguments("--rollouts-to", str(queue), "--groups", "6", **settings)) == 0
    assert main(task.arguments("--rollouts-from", str(queue), **settings)) == 130
    assert "the queue of rollouts is empty" in capsys.readouterr().err
    first, second = read_metrics(task.run_dir)
    assert first.metrics["loss/ratio"] == pytest.approx(1.0, abs=1e-5)
    # the second step learns from what the policy before the first one wrote
    assert second.metrics["loss/ratio"] != pytest.approx(1.0, abs=1e-5)
    assert second.metrics["drift/mean"] < 1e-3  # by the trainer's log-probabilities of that policy
    assert main(task.arguments("--rollouts-to", str(queue), "--groups", "3", **settings)) == 0
    assert main(task.arguments("--rollouts-from", str(queue), **settings)) == 0
    assert len(read_metrics(task.run_dir)) == 3


def test_groups_that_are_too_old_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task(tmp_path)
    queue = tmp_path / "queue"
    settings = {"learning__num_steps": 3, "rollout__max_queue_age": 0}
    assert main(task.arguments("--rollouts-to", str(queue), "--groups", "6", **settings)) == 0
    assert main(task.arguments("--rollouts-from", str(queue), **settings)) == 130
    assert len(read_metrics(task.run_dir)) == 1
    assert "(3 were too old)" in capsys.readouterr().err


def test_without_a_number_as_many_are_written_as_will_be_taken(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    queue = tmp_path / "queue"
    assert main(task.arguments("--rollouts-to", str(queue), rollout__max_queue_age=1)) == 0
    assert len(RolloutQueue(queue)) == 3 * 2
    ids = [json.loads(path.read_text(encoding="utf-8"))["id"] for path in sorted(queue.glob("*.json"))]
    assert len(set(ids)) == 6


def test_writing_and_reading_at_once_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task(tmp_path)
    assert main(task.arguments("--rollouts-to", str(tmp_path / "a"), "--rollouts-from", str(tmp_path / "b"))) == 2
    assert "exclude each other" in capsys.readouterr().err
