"""Things that must be equal, of rollout and learning together, on models of two layers in float32.

Numbers in the names are those of the list of invariants in CONTRIBUTING: 4 stands in tests/unit/learning/test_advantages.py,
11 in tests/unit/data/test_hints.py; 7 and 12 run the whole door in tests/invariants/test_resume.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from edge_rl.config import LearningConfig, RolloutConfig
from edge_rl.learning.collate import Item, Row, collate, make_microbatches, make_rows
from edge_rl.learning.learner import Learner
from edge_rl.learning.losses import LOSSES
from edge_rl.rollout.collector import Collector
from edge_rl.types import Author, Group, Prompt, Rollout, ScoredGroup, Segment, generate_all
from tests.builders import (
    CountingInterpreter,
    PieceCodec,
    hint,
    make_group,
    make_request,
    make_rollout,
    make_scored_group,
    policy,
    tool,
)
from tests.builders_policies import Policy, RecordingLearner, gradients_of, make_policy, plain_logprobs, trainable

PROMPTS = ((5, 6, 7), (9, 8, 7, 6, 5, 4))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return make_policy(tmp_path_factory.mktemp("policy"), std=0.1)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """The same in double precision: what is left of a difference is no rounding of the layers."""
    made = make_policy(tmp_path_factory.mktemp("exact"), std=0.1, packed=False)
    made.model.double()
    return made


def _settings(**fields: Any) -> LearningConfig:
    # the engine's logprobs in these rollouts are made up, so there is nothing to correct
    usual: dict[str, Any] = {"microbatch_tokens": 10_000, "warmup_steps": 0, "engine_correction": False}
    return LearningConfig(**(usual | fields))


def _one_rollout_a_row(groups: Sequence[Sequence[Item]], *, max_tokens: int) -> list[Row]:
    return [Row(items=(item,)) for group in groups for item in group]


def _groups(*, version: int = 0) -> list[ScoredGroup]:
    """Ragged rollouts with tool and hint tokens, three rewards, and one silent group."""
    generator = torch.Generator().manual_seed(0)

    def written(count: int) -> Segment:
        tokens = cast(list[int], torch.randint(10, 300, (count,), generator=generator).tolist())
        return policy(*tokens, version=version)

    first = [
        make_rollout(written(5), prompt=PROMPTS[0]),
        make_rollout(written(3), tool(30, 31, 32), written(4), prompt=PROMPTS[0]),
        make_rollout(written(1), prompt=PROMPTS[0]),
        make_rollout(hint(40, 41), written(6), tool(33), written(2), prompt=PROMPTS[0]),
    ]
    second = [make_rollout(written(2 + index), prompt=PROMPTS[1]) for index in range(3)]
    silent = [make_rollout(written(4), prompt=PROMPTS[1]) for _ in range(2)]
    return [
        make_scored_group([1.0, 0.0, -0.1, 1.0], first),
        make_scored_group([0.0, 1.0, 0.0], second),
        make_scored_group([1.0, 1.0], silent),
    ]


def _carried(model: Any, groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """The groups with behaviour logprobs of a slightly other policy: the model's own, and up to 0.4 more or less."""
    generator = torch.Generator().manual_seed(3)

    def shifted(rollout: Rollout) -> Rollout:
        prompt = rollout.prompt.token_ids
        own_T = plain_logprobs(model, (*prompt, *rollout.token_ids), len(prompt))
        old = cast(list[float], (own_T + 0.8 * torch.rand(len(own_T), generator=generator) - 0.4).tolist())
        segments: list[Segment] = []
        start = 0
        for segment in rollout.segments:
            end = start + len(segment.token_ids)
            is_policy = segment.author is Author.POLICY
            segments.append(replace(segment, behaviour_logprobs=tuple(old[start:end]) if is_policy else ()))
            start = end
        return replace(rollout, segments=tuple(segments))

    return [
        replace(group, group=make_group([shifted(rollout) for rollout in group.group.rollouts])) for group in groups
    ]


def _assert_equal_gradients(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal to 1e-6 of the largest entry of the step."""
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-3  # no equality of zeros
    for name, gradient in found.items():
        difference = float((gradient - expected[name]).abs().max())
        assert difference < 1e-6 * max(largest, 1.0), name


# -- 1: the first step is REINFORCE ----------------------------------------------------------------------------------


def _reinforce(model: Any, groups: Sequence[ScoredGroup], *, temperature: float = 1.0) -> dict[str, Tensor]:
    """Gradient of -sum over policy tokens of A log pi, over the number of live policy tokens: plain autograd."""
    total = torch.zeros(())
    count = 0
    for group in groups:
        rewards = [float(reward.total or 0.0) for reward in group.rewards]
        if len(set(rewards)) == 1:
            continue
        mean = sum(rewards) / len(rewards)
        for rollout, reward in zip(group.group.rollouts, rewards, strict=True):
            prompt, completion = rollout.prompt.token_ids, rollout.token_ids
            logits_TV = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
            logprobs_T = (logits_TV / temperature).log_softmax(-1)[range(len(completion)), list(completion)]
            total = total - (reward - mean) * logprobs_T[torch.tensor(rollout.loss_mask)].sum()
            count += rollout.num_policy_tokens
    (total / count).backward()
    return gradients_of(model)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_1_at_the_first_step_every_ratio_is_1_and_the_gradient_is_that_of_reinforce(
    exact: Policy, temperature: float
) -> None:
    learner = RecordingLearner(exact.model, _settings(), temperature=temperature)
    metrics = learner.update(_groups(version=3), policy_version=3)
    assert metrics["loss/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["loss/clip_high"] == metrics["loss/clip_low"] == 0.0
    expected = _reinforce(exact.model, _groups(version=3), temperature=temperature)
    _assert_equal_gradients(learner.gradients, expected)


@pytest.mark.parametrize("loss", ["cispo"])
def test_1_holds_for_every_loss_that_is_a_token_mean(exact: Policy, loss: str) -> None:
    learner = RecordingLearner(exact.model, _settings(loss=loss))
    learner.update(_groups(), policy_version=0)
    _assert_equal_gradients(learner.gradients, _reinforce(exact.model, _groups()))


# -- 2: microbatches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_2_one_batch_equals_microbatches(exact: Policy, loss: str) -> None:
    """Tokens of an older policy, so that ratios differ from 1; the KL term, so that the reference is cut the same way."""
    groups = _carried(exact.model, _groups(version=0))
    gradients: list[dict[str, Tensor]] = []
    losses: list[float] = []
    for microbatch_tokens in (10_000, 40, 16):
        learner = RecordingLearner(
            exact.model, _settings(loss=loss, microbatch_tokens=microbatch_tokens, kl_coefficient=0.05)
        )
        metrics = learner.update(groups, policy_version=1)
        gradients.append(learner.gradients)
        losses.append(metrics["loss/value"])
        assert abs(metrics["loss/ratio"] - 1.0) > 1e-3
        assert loss == "gspo" or min(metrics["loss/clip_high"], metrics["loss/clip_low"]) > 0
    for found, value in zip(gradients[1:], losses[1:], strict=True):
        assert value == pytest.approx(losses[0], rel=1e-6, abs=1e-6)
        _assert_equal_gradients(found, gradients[0])


def test_2_microbatches_really_differ() -> None:
    items = [
        [Item(rollout=rollout, advantages=(1.0,) * len(rollout.token_ids)) for rollout in group.group.rollouts]
        for group in _groups()
    ]
    counts = [
        len(make_microbatches(make_rows(items, max_tokens=limit), max_tokens=limit)) for limit in (10_000, 40, 16)
    ]
    assert counts[0] == 1 and counts[1] > 1 and counts[2] > counts[1]


# -- 3: padding and shared prompts -----------------------------------------------------------------------------------


@torch.no_grad()
def _by_rollout(learner: Learner, batches: Sequence[Sequence[Row]]) -> dict[tuple[int, ...], Tensor]:
    found: dict[tuple[int, ...], Tensor] = {}
    for rows in batches:
        batch = collate(rows, pad_token_id=2)
        logprobs_N, _ = learner.logprobs(batch)
        for index, item in enumerate(batch.items):
            found[item.rollout.token_ids] = logprobs_N[batch.rollout_N == index]
    return found


def test_3_shared_rows_padding_and_plain_forward_passes_give_the_same_logprobs(tiny: Policy) -> None:
    learner = RecordingLearner(tiny.model, _settings())
    items = [
        [Item(rollout=rollout, advantages=(1.0,) * len(rollout.token_ids)) for rollout in group.group.rollouts]
        for group in _groups()
    ]
    shared = _by_rollout(learner, make_microbatches(make_rows(items, max_tokens=10_000), max_tokens=10_000))
    alone = _by_rollout(learner, [[Row(items=(item,))] for group in items for item in group])
    padded = _by_rollout(learner, [[Row(items=(item,)) for group in items for item in group]])
    rollouts = [item.rollout for group in items for item in group]
    assert len(shared) == len(rollouts)
    for rollout in rollouts:
        mask_T = torch.tensor(rollout.loss_mask)
        sequence = (*rollout.prompt.token_ids, *rollout.token_ids)
        expected = plain_logprobs(tiny.model, sequence, len(rollout.prompt.token_ids))[mask_T].float()
        for found in (shared, alone, padded):
            torch.testing.assert_close(found[rollout.token_ids], expected, atol=1e-5, rtol=0)


def test_3_shared_rows_give_the_same_gradient_as_one_rollout_a_row(
    exact: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = RecordingLearner(exact.model, _settings())
    shared.update(_groups(), policy_version=0)
    alone = RecordingLearner(exact.model, _settings())
    with monkeypatch.context() as context:
        context.setattr("edge_rl.learning.learner.make_rows", _one_rollout_a_row)
        alone.update(_groups(), policy_version=0)
    _assert_equal_gradients(shared.gradients, alone.gradients)


def test_3_the_pad_token_does_not_matter(tiny: Policy) -> None:
    groups = _groups()
    items = [
        Item(rollout=rollout, advantages=(1.0,) * len(rollout.token_ids))
        for group in groups
        for rollout in group.group.rollouts
    ]
    rows = [Row(items=(item,)) for item in items]
    learner = RecordingLearner(tiny.model, _settings())
    with torch.no_grad():
        one, other = (learner.logprobs(collate(rows, pad_token_id=pad))[0] for pad in (2, 250))
    assert torch.equal(one, other)


def test_4_the_order_of_groups_and_members_does_not_matter(exact: Policy) -> None:
    plain = RecordingLearner(exact.model, _settings())
    plain.update(_groups(), policy_version=0)
    turned = [
        replace(
            group,
            group=make_group(group.group.rollouts[::-1]),
            verdicts=group.verdicts[::-1],
            rewards=group.rewards[::-1],
        )
        for group in reversed(_groups())
    ]
    permuted = RecordingLearner(exact.model, _settings())
    permuted.update(turned, policy_version=0)
    _assert_equal_gradients(permuted.gradients, plain.gradients)


# -- 5: chunks -------------------------------------------------------------------------------------------------------


def _collect(policy_: Policy, settings: RolloutConfig, *, rounds: int = 8) -> tuple[dict[str, Group], int, int]:
    """The groups drawn in step 0, finished over as many steps as it takes; sessions opened; steps taken."""
    interpreter = CountingInterpreter()
    collector = Collector(policy_.engine, interpreter, PieceCodec(), settings, seed=1, stop_token_ids=(0,))
    drawn = 0

    def prompts(count: int) -> list[Prompt]:
        nonlocal drawn
        drawn += count
        return [
            Prompt(sample_id=f"s{index}", token_ids=tuple(range(3, 8 + index % 3)))
            for index in range(drawn - count, drawn)
        ]

    found: dict[str, Group] = {}
    carried: list[Group] = []
    step = 0
    while step < rounds:
        finished, carried = collector.collect(prompts, carried, step=step)
        found |= {group.id: group for group in finished if group.born == 0}
        step += 1
        if not any(group.born == 0 for group in carried):
            break
    assert all(session.is_closed for session in interpreter.sessions)
    return found, len(interpreter.sessions), step


def _assert_equal_rollouts(found: Rollout, expected: Rollout) -> None:
    assert found.token_ids == expected.token_ids
    assert found.loss_mask == expected.loss_mask
    assert found.stop_reason is expected.stop_reason
    assert found.executions == expected.executions
    assert found.text == expected.text and found.policy_text == expected.policy_text
    assert found.behaviour_logprobs == pytest.approx(expected.behaviour_logprobs, abs=2e-5)


@pytest.mark.parametrize("chunk_tokens", [16, 7])
def test_5_with_frozen_weights_chunks_change_nothing(tmp_path: Path, chunk_tokens: int) -> None:
    """One chunk of 64 tokens equals four of 16, tool calls and calls that cross an edge included."""
    tiny = make_policy(tmp_path, slots=8, std=0.1)
    tiny.engine.load_adapter(tiny.save(), policy_version=0)
    common: dict[str, Any] = {"group_size": 4, "max_tokens": 64, "max_tool_calls": 3, "tool_output_chars": 16}
    whole, _, _ = _collect(tiny, RolloutConfig(prompts_per_step=4, chunk_tokens=64, **common))
    chunked, _, steps = _collect(tiny, RolloutConfig(prompts_per_step=2, chunk_tokens=chunk_tokens, **common))
    assert steps > 1
    assert chunked.keys() == whole.keys() and len(whole) == 4
    for group_id, group in whole.items():
        for found, expected in zip(chunked[group_id].rollouts, group.rollouts, strict=True):
            _assert_equal_rollouts(found, expected)
    rollouts = [rollout for group in whole.values() for rollout in group.rollouts]
    calls = sum(len(rollout.executions) for rollout in rollouts)
    crossing = sum(_has_call_across_an_edge(rollout) for group in chunked.values() for rollout in group.rollouts)
    assert calls >= 8 and crossing >= 2  # the model wrote calls, and some crossed an edge


def _has_call_across_an_edge(rollout: Rollout) -> bool:
    """Whether a tool result follows two policy segments in a row, with an opening fence in the first of them."""
    codec = PieceCodec()
    for before, last, result in zip(rollout.segments, rollout.segments[1:], rollout.segments[2:], strict=False):
        authors = (before.author, last.author, result.author)
        if authors == (Author.POLICY, Author.POLICY, Author.TOOL) and "```python" in codec.decode(before.token_ids):
            return True
    return False


# -- 6: adapter off --------------------------------------------------------------------------------------------------


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    return model(input_ids=torch.tensor([[5, 6, 7, 100, 200]])).logits


@pytest.mark.parametrize("packed", [False, True])
def test_6_adapter_off_gives_the_base_logits_bit_for_bit(tmp_path: Path, packed: bool) -> None:
    tiny = make_policy(tmp_path, packed=packed, std=0.0)  # B = 0: the adapter adds exactly nothing
    base = _logits(tiny.model)
    learner = Learner(tiny.model, _settings(learning_rate=0.05), temperature=1.0, pad_token_id=2)
    for _ in range(2):
        learner.update(_groups(), policy_version=0)
    assert float((_logits(tiny.model) - base).abs().max()) > 0.01
    with tiny.model.disable_adapter():
        assert torch.equal(_logits(tiny.model), base)


def test_6_adapter_off_equals_the_model_before_an_adapter_was_attached(tmp_path: Path) -> None:
    from tests.builders_models import make_tiny_model

    tiny = make_policy(tmp_path, packed=False, std=0.1)
    with tiny.model.disable_adapter():
        assert torch.equal(_logits(tiny.model), _logits(make_tiny_model()))


# -- 8: engine and trainer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_8_engine_logprobs_equal_trainer_logprobs(tmp_path: Path, family: str, temperature: float) -> None:
    tiny = make_policy(tmp_path, family=family, std=0.1)
    tiny.engine.load_adapter(tiny.save(), policy_version=1)
    requests = [
        make_request(
            *PROMPTS[index % 2], key=str(index), seed=index, max_new_tokens=3 + 5 * index, temperature=temperature
        )
        for index in range(6)
    ]
    segments = generate_all(tiny.engine, requests)
    groups = [
        make_scored_group(
            [1.0, 0.0, 0.5],
            [make_rollout(segments[index], prompt=PROMPTS[parity]) for index in range(6) if index % 2 == parity],
        )
        for parity in (0, 1)
    ]
    learner = RecordingLearner(tiny.model, _settings(), temperature=temperature)
    for rollout in (rollout for group in groups for rollout in group.group.rollouts):
        item = Item(rollout=rollout, advantages=(1.0,) * len(rollout.token_ids))
        with torch.no_grad():
            logprobs_N, _ = learner.logprobs(collate([Row(items=(item,))], pad_token_id=2))
        assert logprobs_N.tolist() == pytest.approx(rollout.behaviour_logprobs, abs=1e-4)
    # what the run itself reports about it
    metrics = learner.update(groups, policy_version=1)
    assert metrics["drift/mean"] < 1e-4
    assert metrics["drift/masked"] == 0.0


# -- 9: tool and hint tokens -----------------------------------------------------------------------------------------


def test_9_tool_and_hint_tokens_have_zero_gradient(tiny: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss reaches the hidden states that predict policy tokens, and no other: seen where it enters the model."""
    groups = [
        make_scored_group(
            [1.0, 0.0],
            [
                make_rollout(policy(10), tool(30, 31), policy(11, 12), prompt=PROMPTS[0]),
                make_rollout(hint(40, 41), policy(13), tool(32), prompt=PROMPTS[0]),
            ],
        )
    ]
    hidden: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        output.retain_grad()
        hidden.append(output)

    base: Any = tiny.model.get_base_model()
    decoder: Any = base.get_decoder()
    handle = decoder.norm.register_forward_hook(keep)
    try:
        RecordingLearner(tiny.model, _settings()).update(groups, policy_version=0)
    finally:
        handle.remove()
    (hidden_RSH,) = hidden
    assert hidden_RSH.grad is not None
    reached = hidden_RSH.grad[0].abs().amax(dim=1) > 0
    # row, shorter completion first:  5 6 7 | 40 41 13 32 | 10 30 31 11 12
    # predicted from:        13 from 41; 10 from 7, 11 from 31, 12 from 11
    places = cast(list[int], reached.nonzero().flatten().tolist())
    assert places == [2, 4, 9, 10]


def test_9_what_a_tool_wrote_after_the_last_policy_token_changes_nothing(exact: Policy) -> None:
    found: list[dict[str, Tensor]] = []
    for result in ((30, 31), (50, 60, 70)):
        rollouts = [
            make_rollout(policy(10, 11), tool(*result), prompt=PROMPTS[0]),
            make_rollout(policy(12), prompt=PROMPTS[0]),
        ]
        learner = RecordingLearner(exact.model, _settings())
        learner.update([make_scored_group([1.0, 0.0], rollouts)], policy_version=0)
        found.append(learner.gradients)
    _assert_equal_gradients(found[1], found[0])


# -- 10: equal rewards -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", ["centred", "group", "batch", "rloo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, -0.1])
def test_10_groups_with_equal_rewards_make_no_step(tmp_path: Path, advantage: str, reward: float) -> None:
    tiny = make_policy(tmp_path)
    before = trainable(tiny.model)
    learner = Learner(tiny.model, _settings(advantage=advantage), temperature=1.0, pad_token_id=2)
    groups = [make_scored_group([reward] * len(group.rewards), group.group.rollouts) for group in _groups()]
    metrics = learner.update(groups, policy_version=0)
    assert metrics["learning/live_rollouts"] == 0
    assert "loss/value" not in metrics
    assert learner.num_steps_taken == 0
    assert learner.state()["optimizer"]["state"] == {}
    assert all(torch.equal(weight, before[name]) for name, weight in trainable(tiny.model).items())


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_10_a_silent_group_adds_nothing_to_the_gradient_of_the_others(exact: Policy, loss: str) -> None:
    everything, live = (RecordingLearner(exact.model, _settings(loss=loss)) for _ in range(2))
    everything.update(_groups(), policy_version=0)
    live.update(_groups()[:2], policy_version=0)
    _assert_equal_gradients(everything.gradients, live.gradients)
