"""The doors before and after a run: what the model can do, and what happens in a run; and guards that act."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors_torch

from edge_rl.doctor import main as doctor
from edge_rl.monitor.metrics import read_metrics
from edge_rl.probe import main as probe
from edge_rl.train import main as train
from tests.builders_runs import SETTINGS, Task, after_step, make_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A finished run of three steps."""
    task = make_task(tmp_path_factory.mktemp("doctor"))
    assert train(task.arguments()) == 0
    return task


def _probe_arguments(task: Task, *more: str) -> list[str]:
    wanted = {key: value for key, value in SETTINGS.items() if not key.startswith(("run.", "warm_start.", "export."))}
    flags = [part for key, value in wanted.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    return ["--model", str(task.model), "--data", str(task.data), *flags, *more]


# -- probe -----------------------------------------------------------------------------------------------------------


def test_probe_measures_training_questions_and_names_a_command(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    status = probe(_probe_arguments(task, "--k", "4", "--questions", "5", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert found["k"] == 4
    assert found["num_completions"] == 20
    assert len(found["success"]) == 5
    assert all(name.startswith(("hinted-", "train-")) for name in found["success"])
    assert sum(found["buckets"].values()) == 5
    assert status == (0 if found["advice"]["worth_it"] else 1)
    assert found["command"].startswith("python -m edge_rl.train --recipe ")
    assert f"--model {task.model}" in found["command"]
    assert found["think"] == "off"
    assert found["by_think"]["off"]["success"] == found["success"]


def test_probe_of_an_adapter_sees_what_it_learned(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    probe(_probe_arguments(task, "--k", "4", "--json"))
    base = json.loads(capsys.readouterr().out)
    probe(_probe_arguments(task, "--k", "4", "--adapter", str(task.run_dir / "best" / "adapter"), "--json"))
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["pass_at_1"]["value"] > base["pass_at_1"]["value"]


def test_probe_text_has_the_histogram_and_the_reasons(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    probe(_probe_arguments(task, "--k", "2", "--questions", "3"))
    out = capsys.readouterr().out
    for word in ("3 questions, 6 completions", "pass@1", "pass@2", "groups with signal", "10-50", "recipe: ", "  - "):
        assert word in out, out


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--k", "1"], "at least 2"),
        (["--questions", "0"], "at least 1"),
        (["--adapter", "absent"], "cannot read adapter"),
        (["--set", "rollout.slot=3"], "did you mean"),
        (["--think", "both"], "no thinking mode"),
    ],
)
def test_mistakes_of_a_probe_are_one_line(
    more: list[str], word: str, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(_probe_arguments(task, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and word in error, error


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_reads_a_run(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    status = doctor([str(task.run_dir), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == int(any(entry["severity"] == "problem" for entry in found))
    assert all(set(entry) == {"rule", "severity", "what", "why", "do"} for entry in found)
    assert "stopped" not in [entry["rule"] for entry in found]
    assert doctor([str(task.run_dir)]) == status
    out = capsys.readouterr().out
    assert all(entry["what"] in out and entry["do"] in out for entry in found)


def test_doctor_sees_that_a_process_is_gone(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (folder / name).write_bytes((task.run_dir / name).read_bytes())
    status = {"pid": 999_999_999, "started": 0.0, "phase": "reinforce", "step": 2, "time": 0.0}
    (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
    assert doctor([str(folder)]) == 1
    assert "the same command again" in capsys.readouterr().out.lower()


def test_doctor_of_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor([str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err


# -- guards ----------------------------------------------------------------------------------------------------------


def _events(task: Task) -> list[dict[str, Any]]:
    lines = (task.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "guard"]


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors_torch.load_file(folder / "adapter" / "adapter_model.safetensors")


def test_a_guard_ends_the_reinforcement_stage_and_the_run_is_still_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task(tmp_path)
    # every group without a signal is dead; a share of 1 % dead over one step is reached at once
    guards = {"guards__dead_steps": 1, "guards__max_dead_share": 0.01}
    arguments = task.arguments("--set", 'guards.actions={dead_groups = "stop"}', learning__num_steps=12, **guards)
    assert train(arguments) == 0
    (event,) = _events(task)
    assert event["guard"] == "dead_groups" and event["action"] == "stop"
    report = json.loads((task.run_dir / "report.json").read_text(encoding="utf-8"))
    assert report["ended_by"].startswith("dead_groups: ")
    assert [row["name"] for row in report["rows"]] == ["base", "warm start", "tuned"]
    steps = len(read_metrics(task.run_dir))
    assert steps < 12
    assert report["validation"][-1][0] == steps  # what the stage ended with is measured, too
    adapter = (task.run_dir / "best" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert "ends here" in capsys.readouterr().err
    # the same command finds the run ended and takes no further step
    assert train(arguments) == 0
    assert len(read_metrics(task.run_dir)) == steps
    assert (task.run_dir / "best" / "adapter" / "adapter_model.safetensors").read_bytes() == adapter


def test_roll_back_brings_the_best_adapter_a_fresh_optimizer_and_a_lower_rate(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    # an entropy below 99 nats is reached after the second step; the best adapter then is the warm start's
    arguments = task.arguments(
        "--set",
        'guards.actions={entropy_collapse = "roll_back"}',
        guards__min_entropy=99.0,
        evaluation__every_steps=100,
        run__keep_checkpoints=3,
    )
    assert train(arguments) == 0
    (event,) = _events(task)
    assert event["guard"] == "entropy_collapse"
    checkpoints = task.run_dir / "checkpoints"
    best = _weights(task.run_dir / "warm_start")
    moved, back = (_weights(checkpoints / f"step-{step}") for step in (1, 2))
    assert all(torch.equal(back[name], weight) for name, weight in best.items())
    assert not all(torch.equal(moved[name], weight) for name, weight in best.items())
    learner = torch.load(checkpoints / "step-2" / "learner.pt", weights_only=True)
    assert learner["optimizer"]["state"] == {}
    assert learner["rate_factor"] == 0.5
    rates = [
        torch.load(checkpoints / f"step-{step}" / "learner.pt", weights_only=True)["optimizer"]["param_groups"][0]["lr"]
        for step in (1, 3)
    ]
    # SETTINGS warm up over two steps: a third of the peak at the first, all of it at the third, halved
    assert rates == pytest.approx([1e-2 / 3, 1e-2 / 2])


@pytest.mark.parametrize("every", [2, 100])
def test_a_run_that_a_guard_changed_resumes_exactly(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"guards__min_entropy": 99.0, "learning__num_steps": 4, "evaluation__every_steps": every}
    whole, stopped = make_task(tmp_path / "whole"), make_task(tmp_path / "stopped")
    assert train(whole.arguments(**changed)) == 0
    with monkeypatch.context() as patch:
        # the guard speaks after the second step; the signal comes within that step
        after_step(2, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        assert train(stopped.arguments(**changed)) == 130
    assert len(read_metrics(stopped.run_dir)) == 2
    assert train(stopped.arguments(**changed)) == 0
    assert [event["message"] for event in _events(stopped)] == [event["message"] for event in _events(whole)]
    last = [
        (task.run_dir / "checkpoints" / "step-4" / "adapter" / "adapter_model.safetensors").read_bytes()
        for task in (whole, stopped)
    ]
    assert last[0] == last[1]
