"""Which rollouts move the adapter, and how far."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from edge_rl.config import LearningConfig
from edge_rl.learning.collate import Item, Microbatch, Row, collate
from edge_rl.learning.learner import Learner
from edge_rl.types import Execution, ExecutionStatus, Rollout, ScoredGroup, StopReason
from tests.builders import make_group, make_rollout, make_scored_group, policy, tool
from tests.builders_policies import RecordingLearner, gradients_of, make_policy, trainable

PROMPT = (5, 6, 7)


def _spoil(gradient: Tensor) -> Tensor:
    return gradient * math.nan


def _settings(**fields: Any) -> LearningConfig:
    # the engine's logprobs in these rollouts are made up, so there is nothing to correct
    usual: dict[str, Any] = {
        "warmup_steps": 0,
        "learning_rate": 1e-2,
        "microbatch_tokens": 10_000,
        "engine_correction": False,
    }
    return LearningConfig(**(usual | fields))


def _groups() -> list[ScoredGroup]:
    first = [
        make_rollout(policy(10, 11, 12), prompt=PROMPT),
        make_rollout(policy(20, 21), tool(30, 31), policy(22), prompt=PROMPT),
        make_rollout(policy(40), prompt=PROMPT),
    ]
    second = [make_rollout(policy(50, 51), prompt=(9, 8)), make_rollout(policy(52, 53, 54), prompt=(9, 8))]
    return [make_scored_group([1.0, 0.0, 0.0], first), make_scored_group([0.0, 1.0], second)]


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return make_policy(tmp_path).model


def _learner(model: Any, **fields: Any) -> Learner:
    return Learner(model, _settings(**fields), temperature=1.0, pad_token_id=2)


@torch.no_grad()
def _logprobs(learner: Learner, rollout: Rollout) -> Tensor:
    item = Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids))
    return learner.logprobs(collate([Row(items=(item,))], pad_token_id=2))[0]


def _values(values_N: Tensor) -> list[float]:
    return cast(list[float], values_N.tolist())


def _rollout_logprobs(learner: Learner, groups: Sequence[ScoredGroup]) -> list[float]:
    return [float(_logprobs(learner, rollout).sum()) for group in groups for rollout in group.group.rollouts]


def _poison(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Spoil the log-probabilities of every microbatch."""
    original = Learner.logprobs

    def logprobs(learner: Learner, batch: Microbatch, hidden_NH: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found_N, entropy_N = original(learner, batch, hidden_NH)
        return found_N * value, entropy_N

    monkeypatch.setattr(Learner, "logprobs", logprobs)


def test_update_raises_what_was_right_and_lowers_what_was_wrong(model: Any) -> None:
    learner = _learner(model)
    groups = _groups()
    before = _rollout_logprobs(learner, groups)
    metrics = learner.update(groups, policy_version=0)
    after = _rollout_logprobs(learner, groups)
    change = [new - old for new, old in zip(after, before, strict=True)]
    assert change[0] > 0 and change[4] > 0
    assert change[1] < 0 and change[2] < 0 and change[3] < 0
    assert metrics["learning/live_rollouts"] == 5
    assert metrics["loss/tokens"] == 3 + 3 + 1 + 2 + 3
    assert metrics["loss/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["loss/grad_norm"] > 0
    assert metrics["loss/skipped"] == 0.0
    assert learner.num_steps_taken == 1


def test_an_unjudged_rollout_is_left_out(model: Any) -> None:
    rollouts = [make_rollout(policy(10, 11), prompt=PROMPT), make_rollout(policy(20), prompt=PROMPT)]
    odd = make_rollout(policy(60, 61, 62, 63), prompt=PROMPT)
    learner = RecordingLearner(model, _settings())
    learner.update([make_scored_group([1.0, 0.0], rollouts)], policy_version=0)
    expected = learner.gradients
    metrics = learner.update([make_scored_group([1.0, None, 0.0], [rollouts[0], odd, rollouts[1]])], policy_version=0)
    assert metrics["learning/live_rollouts"] == 2
    assert metrics["loss/tokens"] == 3
    for name, gradient in learner.gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-7, rtol=0)


def test_an_unjudged_rollout_is_left_out_of_the_kl_term_too(model: Any) -> None:
    odd = make_rollout(policy(60, 61, 62, 63), prompt=PROMPT)
    group = make_scored_group([1.0, None, 0.0], [make_rollout(policy(10), prompt=PROMPT), odd, odd])
    metrics = RecordingLearner(model, _settings(kl_coefficient=0.1)).update([group], policy_version=0)
    assert metrics["learning/live_rollouts"] == 2


@pytest.mark.parametrize("rewards", [[0.0, -0.1], [1.0, 0.9], [0.0, None, -0.1], [1.0, None, 0.9]])
def test_with_mixed_groups_only_a_group_all_right_or_all_wrong_is_left_out(
    model: Any, rewards: list[float | None]
) -> None:
    mixed = make_scored_group([1.0, 0.0], [make_rollout(policy(10), prompt=PROMPT), make_rollout(policy(20))])
    other = make_scored_group(
        rewards, [make_rollout(policy(40 + index), prompt=(9, 8)) for index in range(len(rewards))]
    )
    with_both = RecordingLearner(model, _settings()).update([mixed, other], policy_version=0)
    assert with_both["learning/live_rollouts"] == 4
    learner = RecordingLearner(model, _settings(mixed_groups_only=True))
    metrics = learner.update([mixed, other], policy_version=0)
    assert metrics["learning/live_rollouts"] == 2
    found = learner.gradients
    learner.update([mixed], policy_version=0)
    for name, gradient in learner.gradients.items():
        torch.testing.assert_close(gradient, found[name], atol=1e-6, rtol=0)


def test_a_rollout_without_policy_tokens_is_left_out(model: Any) -> None:
    empty = make_rollout(tool(30), prompt=PROMPT)
    group = make_scored_group([1.0, 0.0], [make_rollout(policy(10), prompt=PROMPT), empty])
    metrics = RecordingLearner(model, _settings()).update([group], policy_version=0)
    assert metrics["learning/live_rollouts"] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_dropped_and_counted(
    model: Any, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    learner = _learner(model)
    before = trainable(model)
    with monkeypatch.context() as context:
        _poison(context, value)
        metrics = learner.update(_groups(), policy_version=0)
    assert metrics["loss/skipped"] == 1.0
    assert learner.num_steps_taken == 0
    for name, weight in trainable(model).items():
        assert torch.equal(weight, before[name]), name
    assert learner.state()["optimizer"]["state"] == {}
    # the next step is as if nothing had happened
    assert learner.update(_groups(), policy_version=0)["loss/skipped"] == 0.0
    assert learner.num_steps_taken == 1


def test_a_skipped_epoch_is_counted_even_if_the_last_one_is_fine(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.logprobs
    calls: list[int] = []

    def logprobs(learner: Learner, batch: Microbatch, hidden_NH: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found_N, entropy_N = original(learner, batch, hidden_NH)
        calls.append(1)
        if len(calls) == 1:
            found_N.register_hook(_spoil)
        return found_N, entropy_N

    monkeypatch.setattr(Learner, "logprobs", logprobs)
    learner = _learner(model, epochs=3)
    metrics = learner.update(_groups(), policy_version=0)
    assert metrics["loss/skipped"] == 1.0
    assert learner.num_steps_taken == 2


@pytest.mark.parametrize(("warmup", "expected"), [(0, [1.0, 1.0, 1.0]), (3, [0.25, 0.5, 0.75, 1.0, 1.0])])
def test_warm_up_rises_linearly_to_the_peak(model: Any, warmup: int, expected: list[float]) -> None:
    learner = _learner(model, warmup_steps=warmup, learning_rate=2e-3)
    rates: list[float] = []
    for _ in expected:
        learner.update(_groups(), policy_version=0)
        rates.append(learner.state()["optimizer"]["param_groups"][0]["lr"])
    assert rates == pytest.approx([2e-3 * share for share in expected], abs=1e-12)


def test_the_first_step_of_adam_moves_each_weight_by_the_learning_rate(model: Any) -> None:
    """Adam's first step is lr * g / (|g| + eps'), whatever the size of g."""
    learner = _learner(model, learning_rate=1e-3, max_grad_norm=1e9)
    recorder = RecordingLearner(model, _settings())
    recorder.update(_groups(), policy_version=0)
    before = trainable(model)
    learner.update(_groups(), policy_version=0)
    for name, weight in trainable(model).items():
        gradient = recorder.gradients[name]
        is_large = gradient.abs() > 1e-4
        moved = (weight - before[name])[is_large]
        torch.testing.assert_close(moved, -1e-3 * gradient[is_large].sign(), atol=1e-6, rtol=1e-3)


def test_gradients_are_clipped_and_the_norm_before_is_reported(model: Any) -> None:
    recorder = RecordingLearner(model, _settings())
    recorder.update(_groups(), policy_version=0)
    norm = _norm(recorder.gradients.values())
    at_step: list[float] = []

    def note(*_: Any) -> None:
        at_step.append(_norm(parameter.grad for parameter in model.parameters() if parameter.grad is not None))

    handle = register_optimizer_step_pre_hook(note)
    try:
        metrics = _learner(model, max_grad_norm=norm / 4).update(_groups(), policy_version=0)
    finally:
        handle.remove()
    assert metrics["loss/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert at_step == [pytest.approx(norm / 4, rel=1e-4)]


def _norm(gradients: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))


def _mixed_and_fresh() -> tuple[Rollout, Rollout]:
    """Two tokens of policy 4 and two of policy 5; the engine's logprobs are -0.5 in the builders."""
    mixed = make_rollout(policy(10, 11, version=4), policy(12, version=5), prompt=PROMPT)
    return mixed, make_rollout(policy(40, version=5), prompt=PROMPT, member=1)


def _ratio(learner: Learner, rollouts: Sequence[Rollout]) -> float:
    metrics = learner.update([make_scored_group([1.0, 0.0], rollouts)], policy_version=5)
    return metrics["loss/ratio"]


def test_tokens_of_an_older_policy_that_nobody_computed_keep_the_engines_logprobs(model: Any) -> None:
    mixed, fresh = _mixed_and_fresh()
    mixed_N, fresh_N = _logprobs(_learner(model), mixed), _logprobs(_learner(model), fresh)
    learner = RecordingLearner(model, _settings(clip_low=0.999, clip_high=1e9))
    metrics = learner.update([make_scored_group([1.0, 0.0], [mixed, fresh])], policy_version=5)
    # fresh tokens have ratio 1 by construction
    ratios = (mixed_N[:2] + 0.5).exp()
    assert metrics["loss/ratio"] == pytest.approx((float(ratios.sum()) + 2) / 4, abs=1e-5)
    # |engine - trainer| where the trainer knows better
    drift = (abs(float(mixed_N[2]) + 0.5) + abs(float(fresh_N[0]) + 0.5)) / 4
    assert metrics["drift/mean"] == pytest.approx(drift, abs=1e-5)


def test_tokens_of_an_older_policy_divide_by_what_the_trainer_computed_then(model: Any) -> None:
    mixed, fresh = _mixed_and_fresh()
    then = _learner(model)
    expected_N = _logprobs(then, mixed)
    group = make_group([mixed, fresh])
    (kept,) = then.with_old_logprobs([group], policy_version=4)
    first, second = kept.rollouts[0].segments
    assert first.old_logprobs == pytest.approx(_values(expected_N[:2]), abs=1e-5)
    assert second.old_logprobs == ()
    assert kept.rollouts[1] == fresh
    then.update(_groups(), policy_version=4)  # the policy moves on
    now_N = _logprobs(then, mixed)
    assert float((now_N - expected_N).abs().max()) > 1e-3
    learner = RecordingLearner(model, _settings(clip_low=0.999, clip_high=1e9))
    ratios = (now_N[:2] - expected_N[:2]).exp()
    assert _ratio(learner, kept.rollouts) == pytest.approx((float(ratios.sum()) + 2) / 4, abs=1e-5)


def test_old_logprobs_are_computed_once(model: Any) -> None:
    learner = _learner(model)
    (first,) = learner.with_old_logprobs([make_group(_mixed_and_fresh())], policy_version=4)
    learner.update(_groups(), policy_version=4)
    (again,) = learner.with_old_logprobs([first], policy_version=4)
    assert again == first
    (later,) = learner.with_old_logprobs([first], policy_version=5)
    assert later.rollouts[0].segments[0] == first.rollouts[0].segments[0]
    assert None not in [*later.rollouts[0].old_logprobs, *later.rollouts[1].old_logprobs]


@pytest.mark.parametrize("microbatch_tokens", [16, 10_000])
def test_old_logprobs_reach_their_own_rollout_and_token(model: Any, microbatch_tokens: int) -> None:
    rollouts = [
        make_rollout(policy(10), tool(30, 31), policy(11, 12), prompt=PROMPT),
        make_rollout(policy(20, 21, 22), prompt=PROMPT, member=1),
        make_rollout(policy(23), prompt=PROMPT, member=2, stop_reason=None),
    ]
    learner = _learner(model, microbatch_tokens=microbatch_tokens)
    (group,) = learner.with_old_logprobs([make_group(rollouts)], policy_version=0)
    for before, after in zip(rollouts, group.rollouts, strict=True):
        expected = iter(_values(_logprobs(learner, before)))
        for is_policy, value in zip(after.loss_mask, after.old_logprobs, strict=True):
            assert value == (pytest.approx(next(expected), abs=1e-5) if is_policy else None)
        assert after.behaviour_logprobs == before.behaviour_logprobs


def test_with_the_engines_logprobs_the_ratio_holds_its_rounding_too(model: Any) -> None:
    mixed, fresh = _mixed_and_fresh()
    mixed_N, fresh_N = _logprobs(_learner(model), mixed), _logprobs(_learner(model), fresh)
    settings = _settings(clip_low=0.999, clip_high=1e9, old_logprobs="engine", engine_correction=True)
    learner = RecordingLearner(model, settings)
    assert learner.with_old_logprobs([make_group([mixed])], policy_version=4) == [make_group([mixed])]
    ratios = (torch.cat([mixed_N, fresh_N]) + 0.5).exp()
    assert _ratio(learner, [mixed, fresh]) == pytest.approx(float(ratios.mean()), rel=1e-5)


def test_the_correction_weighs_each_token_for_the_engine(model: Any) -> None:
    """An engine that is off by ln 2 halves or doubles what a token says; one far off loses its rollout."""
    plain = make_rollout(policy(10), prompt=PROMPT)
    wrong = make_rollout(policy(20), prompt=PROMPT)
    truth = {rollout: float(_logprobs(_learner(model), rollout)) for rollout in (plain, wrong)}

    def gradients(gap: float, **fields: Any) -> dict[str, Tensor]:
        rollouts = [
            make_rollout(policy(10, logprobs=[truth[plain] - gap]), prompt=PROMPT),
            make_rollout(policy(20, logprobs=[truth[wrong] - gap]), prompt=PROMPT),
        ]
        learner = RecordingLearner(model, _settings(engine_correction=True, **fields))
        metrics = learner.update([make_scored_group([1.0, 0.0], rollouts)], policy_version=0)
        assert metrics["drift/mean"] == pytest.approx(abs(gap), abs=1e-5)
        return learner.gradients

    exact = gradients(0.0)
    for gap, weight in ((math.log(2.0), 2.0), (-math.log(2.0), 0.5), (1.5, 0.0), (-1.5, 0.0)):
        for name, gradient in gradients(gap).items():
            torch.testing.assert_close(gradient, weight * exact[name], atol=1e-6, rtol=1e-4)
    for name, gradient in gradients(0.9, correction_cap=1.25).items():
        torch.testing.assert_close(gradient, 1.25 * exact[name], atol=1e-6, rtol=1e-4)


def test_a_garbled_rollout_counts_in_the_mean_and_stays_out_of_the_loss(model: Any) -> None:
    garbled = make_rollout(policy(60, 61), prompt=PROMPT, stop_reason=StopReason.GARBLED)
    others = [make_rollout(policy(10), prompt=PROMPT), make_rollout(policy(20), prompt=PROMPT)]
    learner = RecordingLearner(model, _settings())
    metrics = learner.update([make_scored_group([1.0, 0.0, 0.0], [*others, garbled])], policy_version=0)
    assert metrics["learning/live_rollouts"] == 2
    # advantages 2/3 and -1/3 over two tokens, where two members alone would have 1/2 and -1/2
    found = learner.gradients
    for name, gradient in _mixed_gradients(model, others, (2 / 3, -1 / 3)).items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def _mixed_gradients(model: Any, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> dict[str, Tensor]:
    """Return the gradient of -sum A log pi over the number of tokens, by hand."""
    learner = _learner(model)
    total = torch.zeros(())
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        item = Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids))
        total = total - advantage * learner.logprobs(collate([Row(items=(item,))], pad_token_id=2))[0].sum()
    (total / sum(rollout.num_policy_tokens for rollout in rollouts)).backward()
    return gradients_of(model)


def test_credit_by_turn_reaches_the_tokens_of_its_turn(model: Any) -> None:
    execution = Execution(status=ExecutionStatus.OK, stdout="")
    right = make_rollout(policy(10), tool(30), policy(11), prompt=PROMPT, executions=(execution,))
    wrong = make_rollout(policy(20), prompt=PROMPT)
    learner = RecordingLearner(model, _settings(credit="turn"))
    learner.update([make_scored_group([1.0, 0.0], [right, wrong])], policy_version=0)
    # returns 0.9, 1.0 and 0
    mean = 1.9 / 3
    deviation = math.sqrt(1.81 / 3 - mean**2)
    own = _learner(model)
    values = [(value - mean) / deviation for value in (0.9, 1.0, 0.0)]
    logprobs: list[Tensor] = []
    for rollout in (right, wrong):
        item = Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids))
        logprobs.append(own.logprobs(collate([Row(items=(item,))], pad_token_id=2))[0])
    (-(torch.cat(logprobs) * torch.tensor(values)).sum() / 3).backward()
    expected = gradients_of(model)
    for name, gradient in learner.gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


def test_a_second_epoch_compares_with_the_policy_before_the_first(model: Any) -> None:
    learner = _learner(model, epochs=2)
    metrics = learner.update(_groups(), policy_version=0)
    # after one step of size 1e-2 the ratios are no longer 1
    assert abs(metrics["loss/ratio"] - 1.0) > 1e-3
    assert learner.num_steps_taken == 2


@pytest.mark.parametrize("microbatch_tokens", [10_000, 16])
def test_entropy_is_the_mean_over_policy_tokens(model: Any, microbatch_tokens: int) -> None:
    rollout = make_rollout(policy(10), tool(*range(30, 41)), policy(11), prompt=PROMPT)
    group = make_scored_group([1.0, 0.0], [rollout, make_rollout(policy(40), prompt=PROMPT)])
    metrics = RecordingLearner(model, _settings(microbatch_tokens=microbatch_tokens)).update([group], policy_version=0)
    expected = 0.0
    with torch.no_grad():
        for sequence, places in (((*PROMPT, 10, *range(30, 41)), (2, 14)), (PROMPT, (2,))):
            logprobs_TV = model(input_ids=torch.tensor([sequence])).logits[0].log_softmax(-1)
            expected += sum(float(-(logprobs_TV[place].exp() * logprobs_TV[place]).sum()) for place in places) / 3
    assert metrics["loss/entropy"] == pytest.approx(expected, abs=1e-5)


def test_kl_metric_compares_with_the_adapter_off(model: Any) -> None:
    group = make_scored_group(
        [1.0, 0.0], [make_rollout(policy(10), prompt=PROMPT), make_rollout(policy(40), prompt=PROMPT)]
    )
    metrics = RecordingLearner(model, _settings(kl_coefficient=0.1)).update([group], policy_version=0)
    with torch.no_grad():
        own_V = model(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
        with model.disable_adapter():
            base_V = model(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    gaps = [float(base_V[token] - own_V[token]) for token in (10, 40)]
    expected = sum(math.exp(gap) - gap - 1 for gap in gaps) / 2
    assert expected > 1e-4
    assert metrics["loss/kl"] == pytest.approx(expected, abs=1e-5)


def test_with_a_kl_term_rollouts_of_silent_groups_take_part(model: Any) -> None:
    rollouts = [make_rollout(policy(10), prompt=PROMPT), make_rollout(policy(40), prompt=PROMPT)]
    learner = RecordingLearner(model, _settings(kl_coefficient=0.1))
    metrics = learner.update([make_scored_group([1.0, 1.0], rollouts)], policy_version=0)
    assert metrics["learning/live_rollouts"] == 2
    assert any(float(gradient.abs().max()) > 0 for gradient in learner.gradients.values())


def test_state_continues_exactly(tmp_path: Path) -> None:
    whole, first, second = (make_policy(tmp_path / name) for name in ("a", "b", "c"))
    straight = _learner(whole.model, warmup_steps=3)
    for _ in range(4):
        straight.update(_groups(), policy_version=0)
    before = _learner(first.model, warmup_steps=3)
    for _ in range(2):
        before.update(_groups(), policy_version=0)
    second.model.load_state_dict(first.model.state_dict())
    after = _learner(second.model, warmup_steps=3)
    after.load_state(before.state())
    for _ in range(2):
        after.update(_groups(), policy_version=0)
    assert after.num_steps_taken == 4
    expected = trainable(whole.model)
    for name, weight in trainable(second.model).items():
        assert torch.equal(weight, expected[name]), name


def test_the_base_is_never_written(model: Any) -> None:
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    learner = _learner(model, learning_rate=0.1)
    for _ in range(2):
        learner.update(_groups(), policy_version=0)
    after = dict(model.named_parameters())
    assert len(before) > 10
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_the_attention_of_the_model_is_as_it_was(model: Any) -> None:
    """The warm start uses the same model, with masks that the learner's attention does not read."""
    before = model.get_base_model().config._attn_implementation
    logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    RecordingLearner(model, _settings()).update(_groups(), policy_version=0)
    assert model.get_base_model().config._attn_implementation == before
    assert torch.equal(model(input_ids=torch.tensor([[5, 6, 7]])).logits, logits)
