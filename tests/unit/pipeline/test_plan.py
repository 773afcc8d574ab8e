import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from edge_rl.catalog import Shape
from edge_rl.config import Config, LearningConfig, ModelConfig, build
from edge_rl.learning.collate import Item, Row, collate
from edge_rl.learning.learner import Learner
from edge_rl.pipeline import plan as plan_module
from edge_rl.pipeline.estimates import Pass, Precision, activation_bytes
from edge_rl.pipeline.plan import changed_settings, make_plan, plan_text
from edge_rl.train import main
from edge_rl.types import Author, Prompt, Rollout, Segment
from edge_rl.weights.adapters import attach_adapter

DATA = Path(__file__).resolve().parents[3] / "data_seeds" / "tool_math.jsonl"
MEMORY_PARTS = {
    "base",
    "adapter and optimizer",
    "engine copies",
    "key-value cache",
    "activations",
    "logits",
    "program",
}
PHASES = {
    "warm start",
    "rejection",
    "preference",
    "GRPO rollouts",
    "GRPO updates",
    "validation",
    "test",
    "GGUF test",
    "export",
    "total",
}


@pytest.fixture(autouse=True)
def _no_weights_no_measuring(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "torch_saves" in request.node.name:
        return

    def forbidden(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a plan loads no weights and no tokenizer")

    for loader in (AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(loader, "from_pretrained", forbidden)
    monkeypatch.setattr(plan_module, "matmul_gflops", _rate(100.0))


def _config(**sections: Any) -> Config:
    return build({"data": {"path": str(DATA)}} | sections)


def test_plan_has_every_part_and_downloads_nothing() -> None:
    plan = make_plan(_config(model={"name": "qwen-1.5b"}))
    assert plan["model"]["location"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert plan["model"]["parameters"] == 1_543_714_304
    assert plan["model"]["download_bytes"] == 2 * 1_543_714_304
    assert plan["model"]["present"] is False
    assert set(plan["memory"]["parts"]) == MEMORY_PARTS
    assert plan["memory"]["total"] == sum(plan["memory"]["parts"].values())
    assert set(plan["minutes"]) == PHASES
    assert plan["minutes"]["total"] == pytest.approx(
        sum(value for phase, value in plan["minutes"].items() if phase != "total")
    )
    assert plan["samples"]["test"] == 200 and plan["samples"]["traces"] == 30
    json.dumps(plan)
    text = plan_text(plan)
    for word in ("qwen-1.5b", "1.54B", "3.09 GB", "key-value cache", "warm start", "model.name = 'qwen-1.5b'"):
        assert word in text


def _rate(gflops: float) -> Callable[..., float]:
    return lambda *_: gflops


def test_minutes_follow_the_measured_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(model={"name": "smollm2-135m"})
    slow = make_plan(config)["minutes"]
    monkeypatch.setattr(plan_module, "matmul_gflops", _rate(200.0))
    quick = make_plan(config)["minutes"]
    assert quick["GRPO updates"] == pytest.approx(slow["GRPO updates"] / 2)
    assert quick["export"] == slow["export"]


def test_plan_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    bare = tmp_path / "bare.jsonl"
    bare.write_text(
        "\n".join(json.dumps({k: v for k, v in row.items() if k not in ("trace", "hints")}) for row in rows)
    )
    monkeypatch.setattr(plan_module, "matmul_gflops", _rate(0.5))
    sections = {"rollout": {"prompts_per_step": 2, "group_size": 4}, "data": {"path": str(bare)}}
    warnings = " | ".join(make_plan(_config(model={"name": "qwen-3b"}, **sections))["warnings"])
    for word in ("hours", "a step has 8 rollouts", "no training sample carries a trace", "non-commercial"):
        assert word in warnings


@pytest.mark.parametrize(("percent", "is_told"), [(10.0, False), (80.0, True)])
def test_plan_says_that_the_machine_is_busy(percent: float, is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def cpu_percent(interval: float) -> float:
        return percent

    monkeypatch.setattr(plan_module.psutil, "cpu_percent", cpu_percent)
    warnings = make_plan(_config())["warnings"]
    assert any("other programs" in warning for warning in warnings) is is_told


def test_plan_warns_of_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plan_module.psutil,
        "virtual_memory",
        lambda: type("Memory", (), {"available": 1_000_000_000})(),
    )
    plan = make_plan(_config(model={"name": "qwen-1.5b", "dtype": "float32"}))
    assert plan["memory"]["fits"] is False
    assert "does not fit" in " ".join(plan["warnings"])


def test_unknown_hub_model_has_no_numbers() -> None:
    plan = make_plan(_config(model={"name": "someone/tiny-thing"}))
    assert plan["memory"] is None and plan["minutes"] is None
    assert "unknown" in plan_text(plan)


def test_changed_settings_are_those_that_differ() -> None:
    changed = changed_settings(build({"rollout": {"group_size": 4}, "model": {"name": "smollm2-135m"}}))
    assert changed == {"rollout.group_size": {"value": 4, "default": 8}}


def test_door_prints_the_plan_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = main(["--dry-run", "--json", "--data", str(DATA), "--set", f"run.folder={tmp_path / 'runs'}"])
    assert status == 0
    assert json.loads(capsys.readouterr().out)["model"]["name"] == "smollm2-135m"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model", "qwen-1.5"], "did you mean 'qwen-1.5b'?"),
        (["--model", "someone/giant-7B"], "7.0B"),
        (["--data", "absent.jsonl"], "absent.jsonl does not exist"),
        (["--set", "rollout.group_sise=4"], "did you mean 'group_size'?"),
        (["--set", "model.quantisation=nf4"], "nf4"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "nf4" in word and torch.cuda.is_available():
        pytest.skip("nf4 is no mistake on a GPU")
    data = [] if "--data" in arguments else ["--data", str(DATA)]
    assert main(["--dry-run", *data, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ") and word in error


# -- the formula of the activations, against torch ---------------------------------------------------------------------


def _rollout(prompt: Prompt, tokens: int, member: int) -> Rollout:
    ids = tuple(range(5, 5 + tokens))
    segment = Segment(author=Author.POLICY, token_ids=ids, behaviour_logprobs=(0.0,) * tokens)
    return Rollout(prompt=prompt, group_id="g", member=member, segments=(segment,))


def _saved_bytes(layers: int, dtype: torch.dtype, layout: Pass, rank: int) -> int:
    """Bytes that autograd keeps in one pass of the learner, parameters left out."""
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        tie_word_embeddings=True,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]  (a keyword of every transformers config)
    )
    base: Any = LlamaForCausalLM(config)
    model: PeftModel = attach_adapter(base.to(dtype), ModelConfig(rank=rank), seed=0)
    learner = Learner(model, LearningConfig(), temperature=1.0, pad_token_id=0)
    prompt = Prompt(sample_id="s", token_ids=tuple(range(5, 5 + layout.prompt)))
    items = tuple(
        Item(rollout=_rollout(prompt, layout.completion, member), advantages=(1.0,) * layout.completion)
        for member in range(layout.completions)
    )
    batch = collate([Row(items=items)] * layout.rows, pad_token_id=0)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs, _ = learner.logprobs(batch)
        assert logprobs.requires_grad
        return sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_what_torch_saves(dtype: torch.dtype) -> None:
    layout, rank = Pass(rows=1, prompt=40, completions=4, completion=24), 4
    measured = _saved_bytes(3, dtype, layout, rank) - _saved_bytes(2, dtype, layout, rank)
    shape = Shape(layers=1, hidden=64, intermediate=160, heads=4, kv_heads=2, head_dim=16, vocab=128)
    # the rest: masks, the scales of the norms, the normalisers of attention
    assert activation_bytes(shape, layout, rank, Precision(value_bytes=dtype.itemsize)) == pytest.approx(
        measured, rel=0.06
    )
