"""A run that was killed and resumed equals one that was not: adapter bytes, metrics, completions, data order.

The whole door on a random model of two layers, with chunks, so that groups are carried over the kill.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from edge_rl.config import Config, resolve
from edge_rl.errors import ConfigError
from edge_rl.monitor.progress import Progress
from edge_rl.pipeline.proof import train_and_prove
from edge_rl.pipeline.training import Training
from edge_rl.types import StepReport
from tests.builders_models import make_tiny_model, tiny_tokenizer

pytestmark = pytest.mark.slow

NUM_STEPS = 4
KILLED_AT = 3


class _Killed(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


def _save_talkative_model(folder: Path) -> Path:
    """A random model that ends about every fifth token: its head points the end of turn at the mean hidden state."""
    tokenizer = tiny_tokenizer()
    model: Any = make_tiny_model(tied=False)
    with torch.no_grad():
        token_ids = torch.randint(3, 300, (8, 40), generator=torch.Generator().manual_seed(0))
        mean_H = model.get_decoder()(input_ids=token_ids).last_hidden_state.mean(dim=(0, 1))
        model.get_output_embeddings().weight[tokenizer.eos_token_id] = 6.0 * mean_H / mean_H.square().sum()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    return folder


def _save_samples(path: Path) -> Path:
    """Questions that about half of the random completions answer: no e, and no end that is cut off."""
    splits = ["train"] * 5 + ["validation", "test"]
    instruction = {"id": "keywords:letter_frequency", "letter": "e", "let_relation": "less than", "let_frequency": 1}
    rows = [
        {
            "id": f"s{index}",
            "question": f"Write some text, number {index}.",
            "answer": "any",
            "kind": "constraints",
            "options": {"constraints": [instruction]},
            "split": split,
        }
        for index, split in enumerate(splits)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _config(folder: Path, name: str, *, seed: int = 0) -> Config:
    return resolve(
        "default",
        {
            "model.name": str(folder / "model"),
            "model.dtype": "float32",
            "model.rank": 4,
            "data.path": str(folder / "samples.jsonl"),
            "data.system": "",
            "rollout.prompts_per_step": 2,
            "rollout.group_size": 4,
            "rollout.max_tokens": 24,
            "rollout.chunk_tokens": 4,
            "learning.num_steps": NUM_STEPS,
            "learning.learning_rate": 1e-2,
            "warm_start.kind": "none",
            "evaluation.samples_per_question": 1,
            "evaluation.questions_at_8": 0,
            "evaluation.bootstrap": 100,
            "evaluation.every_steps": 100,
            "export.formats": (),
            "run.folder": str(folder / "runs"),
            "run.name": name,
            "run.seed": seed,
            "run.checkpoint_every_steps": KILLED_AT,
            "run.checkpoint_every_minutes": 1000.0,
            "run.keep_checkpoints": 5,
        },
    )


def _let_it_run(_training: Training) -> None:
    pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """An uninterrupted run, one that was killed in its last step and resumed, and one of another seed."""
    folder = tmp_path_factory.mktemp("resume")
    _save_talkative_model(folder / "model")
    _save_samples(folder / "samples.jsonl")
    whole = train_and_prove(_config(folder, "whole"), on_interrupt=_let_it_run)
    broken = _config(folder, "broken")
    original = Progress.step

    def die(self: Progress, report: StepReport, num_steps: int) -> None:
        original(self, report, num_steps)
        if report.step == KILLED_AT:
            raise _Killed

    with pytest.MonkeyPatch.context() as context:
        context.setattr(Progress, "step", die)
        with pytest.raises(_Killed):
            train_and_prove(broken, on_interrupt=_let_it_run)
    resumed_from: list[str] = []

    def note(self: Progress, text: str) -> None:
        resumed_from.append(text)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(Progress, "note", note)
        resumed = train_and_prove(broken, on_interrupt=_let_it_run)
    assert any(text.startswith(f"resumed at step {KILLED_AT} ") for text in resumed_from)
    return {"whole": whole, "resumed": resumed}


def _metrics(run_dir: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("seconds/")} for line in lines]


def test_7_the_runs_are_worth_comparing(runs: Mapping[str, Path]) -> None:
    metrics = _metrics(runs["whole"])
    assert [line["step"] for line in metrics] == list(range(NUM_STEPS))
    assert (
        sum(line["learning/live_rollouts"] > 0 for line in metrics) >= 3
    )  # steps were taken, before and after the kill
    carried = json.loads((runs["whole"] / "checkpoints" / f"step-{KILLED_AT}" / "carried.json").read_text())
    rollouts = [rollout for group in carried for rollout in group["rollouts"]]
    assert any(rollout["stop_reason"] is None and rollout["segments"] for rollout in rollouts)  # some were under way


@pytest.mark.parametrize("step", [KILLED_AT, NUM_STEPS])
def test_7_adapter_bytes_are_equal(runs: Mapping[str, Path], step: int) -> None:
    files = [runs[name] / "checkpoints" / f"step-{step}" / "adapter" / "adapter_model.safetensors" for name in runs]
    contents = [file.read_bytes() for file in files]
    assert contents[0] == contents[1]


def test_7_training_moved_the_adapter(runs: Mapping[str, Path]) -> None:
    folder = runs["whole"] / "checkpoints"
    early, late = (
        (folder / f"step-{step}" / "adapter" / "adapter_model.safetensors").read_bytes()
        for step in (KILLED_AT, NUM_STEPS)
    )
    assert early != late


def test_7_optimizer_state_is_equal(runs: Mapping[str, Path]) -> None:
    states = [
        cast(
            "dict[str, Any]",
            torch.load(runs[name] / "checkpoints" / f"step-{NUM_STEPS}" / "learner.pt", weights_only=True),
        )
        for name in runs
    ]
    assert states[0]["num_steps_taken"] == states[1]["num_steps_taken"] > 0
    first, second = (state["optimizer"]["state"] for state in states)
    assert first.keys() == second.keys() and first
    for index in first:
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(first[index][name], second[index][name])


def test_7_metrics_are_equal_but_for_seconds(runs: Mapping[str, Path]) -> None:
    assert _metrics(runs["whole"]) == _metrics(runs["resumed"])


def test_7_completions_and_data_order_are_equal(runs: Mapping[str, Path]) -> None:
    for step in range(NUM_STEPS):
        whole, resumed = (
            (runs[name] / "samples" / f"step-{step}.jsonl").read_text(encoding="utf-8") for name in ("whole", "resumed")
        )
        assert whole == resumed, step
    states = [
        json.loads((runs[name] / "checkpoints" / f"step-{NUM_STEPS}" / "state.json").read_text(encoding="utf-8"))
        for name in runs
    ]
    assert states[0]["sampler"] == states[1]["sampler"]
    assert states[0]["validations"] == states[1]["validations"]
    carried = [
        (runs[name] / "checkpoints" / f"step-{NUM_STEPS}" / "carried.json").read_text(encoding="utf-8") for name in runs
    ]
    assert carried[0] == carried[1]


def test_7_the_measured_result_is_equal(runs: Mapping[str, Path]) -> None:
    reports = [json.loads((runs[name] / "eval" / "tuned.json").read_text(encoding="utf-8")) for name in runs]
    for report in reports:
        report.pop("seconds")
    assert reports[0] == reports[1]


def test_12_the_same_seed_gives_the_same_run(runs: Mapping[str, Path]) -> None:
    """The first three steps of both runs were made from scratch, in folders of their own."""
    for step in range(KILLED_AT):
        first, second = ((run / "samples" / f"step-{step}.jsonl").read_bytes() for run in runs.values())
        assert first == second
    assert _metrics(runs["whole"])[:KILLED_AT] == _metrics(runs["resumed"])[:KILLED_AT]
    assert (runs["whole"] / "checkpoints" / f"step-{KILLED_AT}" / "carried.json").read_bytes() == (
        runs["resumed"] / "checkpoints" / f"step-{KILLED_AT}" / "carried.json"
    ).read_bytes()


def test_12_another_seed_in_the_same_folder_is_refused(runs: Mapping[str, Path]) -> None:
    folder = runs["whole"].parents[1]
    with pytest.raises(ConfigError, match=r"begun with run\.seed = 0, now it is 1"):
        train_and_prove(_config(folder, "whole", seed=1), on_interrupt=_let_it_run)
