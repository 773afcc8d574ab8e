"""Supervised fine-tuning on a tiny random model: what is learnt, what is not, and that it repeats."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from edge_rl.config import WarmStartConfig
from edge_rl.errors import ConfigError, DataError, ModelError
from edge_rl.offline.around_trl import learning_rate_factor
from edge_rl.offline.sft import (
    IGNORED,
    SftExample,
    SupervisedMetrics,
    fine_tune,
    microbatch_size,
    to_dataset,
)

VOCABULARY = 61


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), eos_token="t2", pad_token="t3"
    )


def _model(seed: int = 0, *, dtype: torch.dtype = torch.float32) -> PeftModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=5,
        pad_token_id=6,
        initializer_range=0.2,
    )
    base = LlamaForCausalLM(config)
    torch.nn.Module.to(base, dtype)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert isinstance(model, PeftModel)
    return model


def _example(start: int, *, length: int = 8) -> SftExample:
    completion = tuple((start + 3 * step) % (VOCABULARY - 10) + 10 for step in range(length))
    return SftExample(prompt_ids=(1, 7, 8), completion_ids=completion, completion_mask=(True,) * length)


def _run(
    model: PeftModel, examples: Sequence[SftExample], tmp_path: Path, *, seed: int = 0, **settings: float
) -> SupervisedMetrics:
    config = WarmStartConfig.model_validate({"epochs": 2, "batch_size": 3, "learning_rate": 1e-2, **settings})
    return fine_tune(model, _tokenizer(), examples, config, seed=seed, output_dir=tmp_path)


def _weights(model: PeftModel, *, trainable: bool) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad is trainable
    }


def _mean_cross_entropy(model: PeftModel, examples: Sequence[SftExample]) -> float:
    """The definition, one example at a time, without padding, batches or TRL."""
    losses: list[float] = []
    for example in examples:
        token_ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        with torch.no_grad():
            logprobs = model(input_ids=token_ids).logits.float().log_softmax(-1)[0, :-1]
        is_learnt = [False] * (len(example.prompt_ids) - 1) + list(example.completion_mask)
        for position, learnt in enumerate(is_learnt):
            if learnt:
                losses.append(-float(logprobs[position, token_ids[0, position + 1]]))
    return sum(losses) / len(losses)


def test_to_dataset_masks_prompt_and_unlearnt_tokens() -> None:
    example = SftExample(prompt_ids=(1, 2), completion_ids=(3, 4, 5), completion_mask=(True, False, True))
    assert to_dataset([example]).to_list() == [
        {"input_ids": [1, 2, 3, 4, 5], "labels": [IGNORED, IGNORED, 3, IGNORED, 5]}
    ]


def test_first_loss_is_the_mean_cross_entropy_of_the_learnt_tokens(tmp_path: Path) -> None:
    mask = (True, True, False, False, True, True, False, True)
    examples = [replace(_example(0), completion_mask=mask), _example(5, length=3), _example(9, length=12)]
    expected = _mean_cross_entropy(_model(), examples)
    metrics = _run(_model(), examples, tmp_path, epochs=1)
    assert metrics["loss_curve"] == [pytest.approx(expected, abs=1e-5)]
    assert (metrics["num_learnt_tokens"], metrics["num_tokens"]) == (5 + 3 + 12, 9 + 8 + 3 + 12)


def test_accumulated_forward_passes_give_the_loss_and_the_step_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [_example(0, length=2), _example(5, length=9), _example(9, length=5), _example(2, length=3)]
    whole, split = _model(), _model()
    at_once = _run(whole, examples, tmp_path, batch_size=4)
    monkeypatch.setattr("edge_rl.offline.sft.MICROBATCH_TOKENS", 12)
    assert microbatch_size(examples, 4) == 1
    accumulated = _run(split, examples, tmp_path, batch_size=4)
    assert accumulated["loss_curve"] == pytest.approx(at_once["loss_curve"], abs=1e-4)
    assert accumulated["num_steps"] == 2
    assert at_once["loss_curve"][1] < at_once["loss_curve"][0] - 1e-2


def test_target_under_the_mask_has_no_influence(tmp_path: Path) -> None:
    # The last token is only ever a target: no later token reads it.
    mask = (True,) * 7 + (False,)
    examples = [replace(_example(start), completion_mask=mask) for start in range(5)]
    changed = [replace(e, completion_ids=(*e.completion_ids[:-1], 10)) for e in examples]
    assert changed != examples
    first, second = _model(), _model()
    assert _run(first, examples, tmp_path)["loss_curve"] == _run(second, changed, tmp_path)["loss_curve"]
    for name, weight in _weights(first, trainable=True).items():
        assert torch.equal(weight, _weights(second, trainable=True)[name]), name


def test_tool_targets_inside_the_trace_carry_no_loss(tmp_path: Path) -> None:
    mask = (True, True, False, False, False, True, True, True)
    example = replace(_example(0), completion_mask=mask)
    # A later token reads a tool token, so the reference is the definition, not another run.
    assert _run(_model(), [example], tmp_path, epochs=1)["loss_curve"] == [
        pytest.approx(_mean_cross_entropy(_model(), [example]), abs=1e-5)
    ]


def test_loss_falls_and_only_the_adapter_changes(tmp_path: Path) -> None:
    model = _model(dtype=torch.bfloat16)
    base, adapter = _weights(model, trainable=False), _weights(model, trainable=True)
    metrics = _run(model, [_example(start) for start in range(6)], tmp_path, epochs=15)
    assert metrics["num_steps"] == len(metrics["loss_curve"]) == 30
    assert metrics["loss_curve"][-1] < 0.7 * metrics["loss_curve"][0]
    for name, weight in _weights(model, trainable=False).items():
        assert torch.equal(weight, base[name]), name
    after = _weights(model, trainable=True)
    assert all(weight.dtype is torch.float32 for weight in after.values())
    assert all(not torch.equal(weight, adapter[name]) for name, weight in after.items())


def test_same_seed_same_bytes_other_seed_other_order(tmp_path: Path) -> None:
    examples = [_example(start, length=4 + start) for start in range(7)]
    first, second, other = _model(), _model(), _model()
    curve = _run(first, examples, tmp_path, seed=3)["loss_curve"]
    assert _run(second, examples, tmp_path, seed=3)["loss_curve"] == curve
    assert _run(other, examples, tmp_path, seed=4)["loss_curve"] != curve
    for name, weight in _weights(first, trainable=True).items():
        assert weight.numpy().tobytes() == _weights(second, trainable=True)[name].numpy().tobytes(), name


def test_last_partial_batch_is_kept(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    config = WarmStartConfig(epochs=2, batch_size=4, learning_rate=1e-3)
    metrics = fine_tune(
        _model(),
        _tokenizer(),
        [_example(start) for start in range(6)],
        config,
        seed=0,
        output_dir=tmp_path,
        on_step=lambda step, num_steps, loss: seen.append((step, num_steps, loss)),
    )
    assert metrics["num_steps"] == 4  # batches of 4 and 2, twice
    assert [(step, num_steps) for step, num_steps, _ in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [loss for _, _, loss in seen] == metrics["loss_curve"]


def test_model_is_left_as_it_was_and_nothing_is_written_or_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = _model().eval()
    base = model.get_base_model()
    assert isinstance(base, LlamaForCausalLM)
    tokens = torch.tensor([[1, 7, 8]])
    _run(model, [_example(0)], tmp_path, epochs=1)
    assert not model.training
    assert "forward" not in vars(model)
    assert "forward" not in vars(base)
    assert (base.config.bos_token_id, base.config.eos_token_id, base.config.pad_token_id) == (1, 5, 6)
    assert base.generation_config is not None
    assert base.generation_config.eos_token_id == 5
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model(input_ids=tokens).logits.shape == (1, 3, VOCABULARY)
    assert list(tmp_path.iterdir()) == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_learning_rate_rises_then_falls() -> None:
    factors = [learning_rate_factor(step, 20) for step in range(20)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[11] == pytest.approx(0.5, abs=1e-12)  # half way down: (11 - 2) / 18
    assert factors[-1] == pytest.approx(0.0076, abs=1e-4)
    assert [learning_rate_factor(step, 1) for step in range(1)] == [1.0]


def test_learning_rates_are_those_of_the_optimizer(tmp_path: Path) -> None:
    metrics = _run(_model(), [_example(start) for start in range(6)], tmp_path, epochs=10)
    assert metrics["learning_rates"][0] == pytest.approx(0.5e-2)
    assert max(metrics["learning_rates"]) == pytest.approx(1e-2)


def test_microbatch_divides_the_batch_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_rl.offline.sft.MICROBATCH_TOKENS", 40)
    examples = [_example(0, length=7), _example(0, length=3)]  # the longest has 3 + 7 tokens
    assert microbatch_size(examples, 6) == 3  # 4 would fit but does not divide 6
    assert microbatch_size(examples, 4) == 4
    assert microbatch_size([_example(0, length=50)], 6) == 1


def test_examples_that_teach_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="none to learn"):
        SftExample(prompt_ids=(1,), completion_ids=(2,), completion_mask=(False,))
    with pytest.raises(DataError, match="2 completion tokens and a mask of 1"):
        SftExample(prompt_ids=(1,), completion_ids=(2, 3), completion_mask=(True,))
    with pytest.raises(DataError, match="needs a prompt"):
        SftExample(prompt_ids=(), completion_ids=(2,), completion_mask=(True,))


def test_fine_tuning_refuses_what_cannot_train(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got none; .* warm_start\.kind=none"):
        _run(_model(), [], tmp_path)
    frozen = _model()
    frozen.requires_grad_(requires_grad=False)
    with pytest.raises(ModelError, match="no trainable weights"):
        _run(frozen, [_example(0)], tmp_path)


def test_fine_tuning_says_so_when_the_loss_diverges(tmp_path: Path) -> None:
    model = _model()
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
    with pytest.raises(ConfigError, match=r"the loss is nan at step 1 of 2 with a learning_rate of 0\.01; lower"):
        _run(model, [_example(0)], tmp_path)
