"""Whole runs of a tiny random model, through the door: what lies in the folder, and that no stop changes the result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edge_rl.monitor.metrics import read_metrics
from edge_rl.pipeline.run_folder import read_config
from edge_rl.train import main
from tests.builders_runs import Task, after_step, make_task

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LONG = {"learning__num_steps": 10, "run__checkpoint_every_steps": 3, "evaluation__every_steps": 4}
"""A run that is long enough to be interrupted."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A run of three steps, exported."""
    task = make_task(tmp_path_factory.mktemp("finished"))
    assert main(task.arguments(export__formats=["f16", "q8_0"])) == 0
    return task


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a long run gives that nobody stops."""
    task = make_task(tmp_path_factory.mktemp("uninterrupted"))
    assert main(task.arguments(**LONG)) == 0
    return _result(task.run_dir)


def _result(run_dir: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on when it was stopped."""
    report = json.loads((run_dir / "report.json").read_text(encoding="utf-8"))
    return {
        "adapter": (run_dir / "best" / "adapter" / "adapter_model.safetensors").read_bytes(),
        "last": (run_dir / "checkpoints" / "step-10" / "adapter" / "adapter_model.safetensors").read_bytes(),
        "steps": [
            {name: value for name, value in step.metrics.items() if not name.startswith("seconds")}
            for step in read_metrics(run_dir)
        ],
        "rows": report["rows"],
        "validation": report["validation"],
    }


def _assert_same(task: Task, expected: dict[str, Any]) -> None:
    found = _result(task.run_dir)
    for key, value in expected.items():
        assert found[key] == value, key


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_report_has_the_promised_keys(finished: Task) -> None:
    report = json.loads((finished.run_dir / "report.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in report["rows"]] == ["base", "warm start", "tuned", "GGUF q8_0"]
    for row in report["rows"]:
        assert set(row) == {"name", "pass_at_1", "interval", "pass_at_8", "code_share", "tokens"}
        low, high = row["interval"]
        assert 0 <= low <= row["pass_at_1"] <= high <= 1
    assert set(report["paired"]) == {"tuned_vs_base", "tuned_vs_warm_start"}
    for difference in report["paired"].values():
        assert set(difference) == {"diff", "low", "high"}
    assert report["minutes"] > 0
    assert report["peak_rss_mb"] > 0


def test_run_folder_is_complete(finished: Task) -> None:
    run_dir = finished.run_dir
    for name in ("config.toml", "manifest.json", "events.jsonl", "status.json", "report.md", "curves.png"):
        assert (run_dir / name).stat().st_size > 0, name
    assert [step.step for step in read_metrics(run_dir)] == [0, 1, 2]
    assert sorted(path.name for path in (run_dir / "samples").iterdir()) == [f"step-{n}.jsonl" for n in range(3)]
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"step-2", "step-3"}
    names = {"base", "warm_start", "tuned", "GGUF_q8_0", "validation-0", "validation-2", "validation-3"}
    assert {path.stem for path in (run_dir / "eval").iterdir()} == names
    assert {"model-f16.gguf", "model-q8_0.gguf", "Modelfile", "export.json", "README.md"} <= {
        path.name for path in (run_dir / "export").iterdir()
    }
    status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    assert status["phase"] == "done"
    assert status["step"] == 3
    assert read_config(run_dir).learning.num_steps == 3
    left = [path for path in run_dir.rglob("*") if ".partial" in path.name or path.name.endswith(".part")]
    assert left == []


def test_adapter_learnt_in_both_stages(finished: Task) -> None:
    weights = {
        name: (finished.run_dir / name / "adapter" / "adapter_model.safetensors").read_bytes()
        for name in ("warm_start", "policy")
    }
    assert weights["warm_start"] != weights["policy"]
    steps = read_metrics(finished.run_dir)
    assert any(step.metrics["groups/live"] > 0 for step in steps), "no group carried a signal: the test shows nothing"
    assert steps[0].metrics["loss/ratio"] == pytest.approx(1.0, abs=1e-4)


def test_finished_run_is_not_trained_again(finished: Task, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_metrics(finished.run_dir)
    assert main(finished.arguments("--json", export__formats=["f16", "q8_0"])) == 0
    assert json.loads(capsys.readouterr().out)["rows"]
    assert read_metrics(finished.run_dir) == before


# -- stop and go on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 4])
def test_control_file_stops_and_the_same_command_goes_on(
    step: int, uninterrupted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tmp_path)
    with monkeypatch.context() as patch:
        after_step(step, lambda: (task.run_dir / "control").write_text("stop") and None, patch)
        assert main(task.arguments(**LONG)) == 130
    assert (task.run_dir / "checkpoints" / f"step-{step}").is_dir()
    assert not (task.run_dir / "report.json").exists()
    assert main(task.arguments(**LONG)) == 0
    _assert_same(task, uninterrupted)


def test_stop_before_a_validation_catches_up_on_it(
    uninterrupted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tmp_path)
    with monkeypatch.context() as patch:
        # a signal in step 4, which is to be validated: the run must not lose that step
        after_step(4, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        assert main(task.arguments(**LONG)) == 130
    assert (task.run_dir / "checkpoints" / "step-4").is_dir()
    assert main(task.arguments(**LONG)) == 0
    _assert_same(task, uninterrupted)


def test_adapters_are_kept_and_the_base_is_measured_beside_them(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    arguments = task.arguments(
        learning__num_steps=4,
        evaluation__every_steps=1,
        evaluation__baseline_every_steps=2,
        run__keep_adapter_every_steps=2,
        run__checkpoint_every_steps=100,
    )
    assert main(arguments) == 0
    kept = sorted(path.name for path in (task.run_dir / "adapters").iterdir())
    assert kept == ["step-2", "step-4"]
    assert (task.run_dir / "adapters" / "step-2" / "adapter_model.safetensors").is_file()
    bases = sorted(path.name for path in (task.run_dir / "eval").glob("validation-*-base.json"))
    assert bases == ["validation-2-base.json", "validation-4-base.json"]


def test_the_stage_ends_when_its_minutes_are_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = make_task(tmp_path)
    arguments = task.arguments(learning__num_steps=50, learning__max_minutes=0.0001)
    assert main(arguments) == 0
    assert len(read_metrics(task.run_dir)) == 1
    report = json.loads((task.run_dir / "report.json").read_text(encoding="utf-8"))
    assert report["ended_by"].startswith("time: ")
    assert [step for step, _ in report["validation"]] == [0, 1]
    assert "minutes of the reinforcement stage are over" in capsys.readouterr().err
    assert main(arguments) == 0
    assert len(read_metrics(task.run_dir)) == 1


def _start(task: Task) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "edge_rl.train", *task.arguments(**LONG)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _wait_for_steps(process: "subprocess.Popen[str]", run_dir: Path, count: int) -> None:
    path = run_dir / "metrics.jsonl"
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"the run ended too early: {process.communicate()[1]}")


def test_ctrl_c_saves_and_the_same_command_goes_on(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    task = make_task(tmp_path)
    process = _start(task)
    _wait_for_steps(process, task.run_dir, 2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert main(task.arguments(**LONG)) == 0
    _assert_same(task, uninterrupted)


def test_killed_run_goes_on_to_the_same_adapter(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    task = make_task(tmp_path)
    process = _start(task)
    # one step past the checkpoint of step 3, so that work is lost and done again
    _wait_for_steps(process, task.run_dir, 4)
    process.kill()
    process.communicate()
    assert main(task.arguments(**LONG)) == 0
    _assert_same(task, uninterrupted)


def test_carried_groups_survive_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        **LONG,
        "rollout__chunk_tokens": 4,
        "rollout__max_resample_rounds": 2,
        "rollout__max_group_age": 6,
        "learning__learning_rate": 1e-3,
    }
    whole, stopped = (make_task(tmp_path / name) for name in ("whole", "stopped"))
    assert main(whole.arguments(**settings)) == 0
    with monkeypatch.context() as patch:
        after_step(5, lambda: (stopped.run_dir / "control").write_text("stop") and None, patch)
        assert main(stopped.arguments(**settings)) == 130
    carried = json.loads((stopped.run_dir / "checkpoints" / "step-5" / "carried.json").read_text(encoding="utf-8"))
    assert carried, "no group was under way at the stop: the test shows nothing"
    assert main(stopped.arguments(**settings)) == 0
    _assert_same(stopped, _result(whole.run_dir))
