"""Every recipe runs whole on a tiny model: finite, learns what was planted, and resumes exactly."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from edge_rl.config import recipe_names
from edge_rl.monitor.metrics import read_metrics
from edge_rl.train import main
from tests.builders_runs import Task, after_step, make_task, samples

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "learning__num_steps": 4,
    "rejection__samples_per_question": 4,
    "rejection__epochs": 2,
    "rejection__learning_rate": 1e-2,
    "preference__rounds": 2,
    "preference__prompts_per_round": 6,
    "preference__samples_per_question": 6,
    "scoring__length_high": 24,
    "scoring__length_easy": 16,
}
"""Recipes are sized for a real task."""
WITHOUT_STEPS = ("sft", "rft", "verifier-dpo")


def _arguments(task: Task, recipe: str, **changed: Any) -> list[str]:
    small = SMALL | ({"learning__num_steps": 0} if recipe in WITHOUT_STEPS else {}) | changed
    if recipe == "icrl":
        small |= {"warm_start__kind": "sft"}  # a random model follows no examples
    return ["--recipe", recipe, *task.arguments(**small)]


def _make_task(folder: Path, recipe: str) -> Task:
    """The usual tiny task; a recipe that shows worked examples needs questions that differ."""
    rows = samples()
    if recipe == "icrl":
        rows = [row | {"question": f"What is answer {index}?"} for index, row in enumerate(rows)]
    return make_task(folder, rows)


def _last_adapter(task: Task) -> bytes:
    return (task.run_dir / "best" / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_runs_whole_and_every_number_is_finite(recipe: str, tmp_path: Path) -> None:
    task = _make_task(tmp_path, recipe)
    assert main(_arguments(task, recipe)) == 0
    steps = read_metrics(task.run_dir)
    assert len(steps) == (0 if recipe in WITHOUT_STEPS else 4)
    for step in steps:
        odd = {name: value for name, value in step.metrics.items() if not math.isfinite(value)}
        assert not odd, odd
    assert sum(step.metrics["learning/live_rollouts"] for step in steps) > 0 or recipe in WITHOUT_STEPS
    shots = [step.metrics["rollout/shots"] for step in steps]
    assert shots == ([3.0, 3.0, 2.0, 2.0] if recipe == "icrl" else [0.0] * len(steps))
    report = json.loads((task.run_dir / "report.json").read_text(encoding="utf-8"))
    names = [row["name"] for row in report["rows"]]
    assert names[0] == "base" and names[-1] == "tuned"
    assert ("rejection" in names) is (recipe == "cort")
    assert report["recipe"] == recipe


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name not in WITHOUT_STEPS])
def test_a_recipe_resumes_exactly(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = (_make_task(tmp_path / name, recipe) for name in ("whole", "stopped"))
    fast = {"evaluation__max_questions": 1, "evaluation__samples_per_question": 1}
    assert main(_arguments(whole, recipe, **fast)) == 0
    with monkeypatch.context() as patch:
        after_step(2, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        assert main(_arguments(stopped, recipe, **fast)) == 130
    assert main(_arguments(stopped, recipe, **fast)) == 0
    assert _last_adapter(stopped) == _last_adapter(whole)


def test_rejection_sampling_is_not_done_twice(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    assert main(_arguments(task, "rft")) == 0
    before = _last_adapter(task)
    events = (task.run_dir / "events.jsonl").read_text(encoding="utf-8")
    assert '"kind": "rejection"' in events
    assert main(_arguments(task, "rft")) == 0
    assert (task.run_dir / "events.jsonl").read_text(encoding="utf-8").count('"kind": "rejection"') == events.count(
        '"kind": "rejection"'
    )
    assert _last_adapter(task) == before


def test_rejection_sampling_that_keeps_nothing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tmp_path)
    # a limit of one token: nothing ends by itself
    arguments = _arguments(task, "rft", rollout__max_tokens=1, rollout__chunk_tokens=1)
    assert main(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: rejection sampling kept none of 48 completions (48 wrong)")
