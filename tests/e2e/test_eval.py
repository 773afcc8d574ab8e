"""The eval door measures what the run measured."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import edge_rl
from edge_rl import DataError
from edge_rl.eval import main
from edge_rl.train import main as train_main
from tests.builders_runs import Task, make_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    task = make_task(tmp_path_factory.mktemp("eval"))
    assert train_main(task.arguments(export__formats=["q8_0"])) == 0
    return task


def _measured(task: Task, name: str) -> dict[str, Any]:
    return json.loads((task.run_dir / "eval" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "tuned"),
        (["--base"], "base"),
        (["--adapter", "{run}/warm_start/adapter"], "warm_start"),
        (["--gguf", "{run}/export/model-q8_0.gguf", "--samples", "1", "--at-8", "0"], "GGUF_q8_0"),
        (["--adapter", "{run}/warm_start/adapter", "--split", "validation"], "validation-0"),
    ],
    ids=["best", "base", "adapter", "gguf", "validation"],
)
def test_door_measures_what_the_run_measured(
    arguments: list[str], name: str, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(run=task.run_dir) for argument in arguments]
    assert main([str(task.run_dir), *given, "--json"]) == 0
    found, expected = json.loads(capsys.readouterr().out), _measured(task, name)
    for key in ("num_correct", "num_samples", "pass_at_1", "pass_at_8", "tokens", "code_share"):
        assert found[key] == expected[key], key


def test_text_names_what_was_measured(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(task.run_dir), "--base", "--questions", "2", "--samples", "1", "--at-8", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("base: 2 questions, 2 judged completions")
    assert "--at-8 N" in out


def test_function_returns_the_report_and_saves_it(task: Task) -> None:
    report = edge_rl.evaluate(task.run_dir, questions=1, samples=8, save="mine")
    assert list(report.num_samples.values()) == [8]
    assert _measured(task, "mine") == asdict(report)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["{run}", "--base", "--adapter", "{run}/best/adapter"], "exclude each other"),
        (["{run}", "--adapter", "{run}/eval"], "holds no adapter"),
        (["{run}", "--gguf", "{run}/absent.gguf"], "edge-rl export"),
        (["{run}", "--save", "tuned"], "none of the names"),
        (["{run}", "--save", "../outside"], "letters, digits"),
        (["{run}", "--samples", "0"], "samples_per_question"),
        (["{run}/eval"], "is no run folder"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], word: str, task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument.format(run=task.run_dir) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert word in error


def test_adapter_of_another_scale_is_refused(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "adapter"
    other.mkdir()
    for path in (task.run_dir / "best" / "adapter").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    settings = json.loads((other / "adapter_config.json").read_text(encoding="utf-8"))
    (other / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 99}))
    assert main([str(task.run_dir), "--adapter", str(other)]) == 2
    assert "lora_alpha=99" in capsys.readouterr().err


def test_saved_name_is_not_overwritten(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    (task.run_dir / "eval" / "kept.json").write_text("{}")
    assert main([str(task.run_dir), "--save", "kept"]) == 2
    assert "exists" in capsys.readouterr().err


def test_public_errors_are_the_same_classes() -> None:
    with pytest.raises(DataError, match="is no run folder"):
        edge_rl.evaluate("absent")
