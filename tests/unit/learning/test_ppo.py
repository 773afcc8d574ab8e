"""GAE by hand, and a critic that learns, is saved, and leaves the policy's weights alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from edge_rl.config import LearningConfig
from edge_rl.errors import ConfigError
from edge_rl.learning.credit import get_credit
from edge_rl.learning.learner import Learner
from edge_rl.learning.ppo import PpoLearner, advantages_and_returns, make_learner, whiten
from edge_rl.types import ScoredGroup, StopReason
from tests.builders import make_rollout, make_scored_group, policy, tool
from tests.builders_policies import gradients_of, make_policy, plain_logprobs, trainable

PROMPT = (5, 6, 7)


def test_advantages_and_returns_by_hand() -> None:
    # deltas: 0.9 * 0.6 - 0.5 = 0.04; 1 - 0.6 = 0.4; A_1 = 0.4; A_0 = 0.04 + 0.9 * 0.5 * 0.4 = 0.22
    advantages, returns = advantages_and_returns([0.5, 0.6], 1.0, discount=0.9, trace=0.5)
    assert advantages == pytest.approx([0.22, 0.4], abs=1e-12)
    assert returns == pytest.approx([0.72, 1.0], abs=1e-12)


@pytest.mark.parametrize(
    ("trace", "expected"), [(1.0, [0.5, 0.4, 0.2]), (0.0, [0.1, 0.2, 0.2])], ids=["monte carlo", "one step"]
)
def test_lambda_goes_from_the_next_value_to_the_whole_return(trace: float, expected: list[float]) -> None:
    advantages, _ = advantages_and_returns([0.5, 0.6, 0.8], 1.0, discount=1.0, trace=trace)
    assert advantages == pytest.approx(expected, abs=1e-12)


def test_whitening_is_over_all_tokens() -> None:
    # 1, 3, 5: mean 3, variance 8/3
    rows = whiten([[1.0, 3.0], [5.0]])
    scale = math.sqrt(8 / 3)
    assert rows[0] == pytest.approx([-2 / scale, 0.0])
    assert rows[1] == pytest.approx([2 / scale])
    assert whiten([[2.0], [2.0]]) == [[0.0], [0.0]]


def _settings(**fields: Any) -> LearningConfig:
    usual: dict[str, Any] = {
        "credit": "gae",
        "warmup_steps": 0,
        "learning_rate": 1e-2,
        "microbatch_tokens": 10_000,
        "engine_correction": False,
    }
    return LearningConfig(**(usual | fields))


def _groups() -> list[ScoredGroup]:
    first = [
        make_rollout(policy(10, 11, 12), prompt=PROMPT),
        make_rollout(policy(20, 21), tool(30, 31), policy(22), prompt=PROMPT, member=1),
    ]
    second = [make_rollout(policy(50, 51), prompt=(9, 8), group_id="h", member=member) for member in range(2)]
    return [make_scored_group([1.0, 0.0], first), make_scored_group([1.0, 1.0], second)]


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return make_policy(tmp_path).model


def _learner(model: Any, **fields: Any) -> PpoLearner:
    learner = make_learner(model, _settings(**fields), temperature=1.0, pad_token_id=2)
    assert isinstance(learner, PpoLearner)
    return learner


def test_credit_decides_which_learner_is_made(model: Any) -> None:
    plain = make_learner(model, _settings(credit="rollout"), temperature=1.0, pad_token_id=2)
    assert type(plain) is Learner
    with pytest.raises(ConfigError, match="needs the learner with a critic"):
        get_credit(_settings())(_groups())


def test_the_first_step_has_the_advantages_of_a_critic_that_says_0(model: Any) -> None:
    """With values 0, discount 1 and lambda 1 every token of a rollout has its reward; then they are whitened."""
    learner = _learner(model, gae_trace=1.0)
    items = learner.weigh(_groups())
    # 3 tokens of reward 1, 3 of reward 0, 4 of reward 1: mean 0.7, deviation sqrt(0.21)
    right, wrong = 0.3 / math.sqrt(0.21), -0.7 / math.sqrt(0.21)
    by_member = {(item.rollout.group_id, item.rollout.member): item.advantages for group in items for item in group}
    assert by_member["g", 0] == pytest.approx((right,) * 3)
    assert by_member["g", 1] == pytest.approx((wrong, wrong, 0.0, 0.0, wrong))  # nothing on what the tool wrote
    assert by_member["h", 1] == pytest.approx((right,) * 2)  # a group that is all right is trained on


def test_unjudged_and_garbled_rollouts_are_left_out(model: Any) -> None:
    odd = [
        make_rollout(policy(1), prompt=PROMPT),
        make_rollout(policy(2), prompt=PROMPT, member=1, stop_reason=StopReason.GARBLED),
        make_rollout(policy(3), prompt=PROMPT, member=2),
    ]
    (items,) = _learner(model).weigh([make_scored_group([None, 0.0, 1.0], odd)])
    assert [item.rollout.member for item in items] == [2]
    assert _learner(model).update([make_scored_group([None], odd[:1])], policy_version=0)["learning/live_rollouts"] == 0


@pytest.mark.parametrize("microbatch_tokens", [16, 10_000])
def test_the_critic_learns_the_rewards(model: Any, microbatch_tokens: int) -> None:
    learner = _learner(model, learning_rate=1e-3, critic_rate_factor=20.0, microbatch_tokens=microbatch_tokens)
    first = learner.update(_groups(), policy_version=0)
    # values are 0: half of the mean squared return, 7 of 10 tokens have 1 (lambda 0.95 bends them a little)
    assert first["loss/critic"] == pytest.approx(first["loss/critic_target"] / 2, rel=1e-6)
    last = [learner.update(_groups(), policy_version=0) for _ in range(30)][-1]
    assert last["loss/critic"] < 0.2 * first["loss/critic"]


def test_the_critic_moves_no_weight_of_the_policy(model: Any) -> None:
    """The same rewards everywhere: whitened advantages are 0 with a critic of 0, so only the critic learns."""
    groups = [make_scored_group([1.0, 1.0], _groups()[1].group.rollouts)]
    before = trainable(model)
    learner = _learner(model, gae_trace=1.0)
    learner.update(groups, policy_version=0)
    assert float(learner.critic.bias.detach()) > 0
    for name, weight in trainable(model).items():
        assert torch.equal(weight, before[name]), name


def test_the_loss_of_the_critic_has_no_gradient_for_the_adapter(model: Any) -> None:
    learner = _learner(model)
    (batch,) = learner.batches(learner.weigh(_groups()))
    with torch.no_grad():
        learner.critic.weight.fill_(0.1)
    loss, _ = learner.extra_loss(batch, learner.hidden(batch), 10)
    assert loss is not None
    loss.backward()
    assert learner.critic.weight.grad is not None
    assert gradients_of(model) == {}


def test_update_raises_what_was_right_and_lowers_what_was_wrong(model: Any) -> None:
    def logprob(token_ids: tuple[int, ...]) -> float:
        return float(plain_logprobs(model, (*PROMPT, *token_ids), 3).sum())

    before = logprob((10, 11, 12)), logprob((20, 21))
    metrics = _learner(model).update(_groups(), policy_version=0)
    after = logprob((10, 11, 12)), logprob((20, 21))
    assert after[0] > before[0] and after[1] < before[1]
    assert metrics["learning/live_rollouts"] == 4
    assert metrics["loss/ratio"] == pytest.approx(1.0, abs=1e-6)


def test_state_continues_exactly(tmp_path: Path) -> None:
    whole, first, second = (make_policy(tmp_path / name) for name in ("a", "b", "c"))
    straight = _learner(whole.model)
    for _ in range(4):
        straight.update(_groups(), policy_version=0)
    before = _learner(first.model)
    for _ in range(2):
        before.update(_groups(), policy_version=0)
    second.model.load_state_dict(first.model.state_dict())
    after = _learner(second.model)
    after.load_state(before.state())
    for _ in range(2):
        after.update(_groups(), policy_version=0)
    assert torch.equal(after.critic.weight, straight.critic.weight)
    expected = trainable(whole.model)
    assert all(torch.equal(weight, expected[name]) for name, weight in trainable(second.model).items())
