"""The table of binary rewards, by hand, and what every estimator must keep."""

import math
import random
from collections.abc import Sequence

import pytest

from edge_rl.errors import ConfigError
from edge_rl.learning.advantages import ADVANTAGES, get_advantage

K = 8
# right rollouts of 8 -> advantage of a right and of a wrong one. With p = m / 8 the sample deviation is
# sqrt(8/7 p (1 - p)).
CENTRED = {1: (7 / 8, -1 / 8), 2: (6 / 8, -2 / 8), 4: (4 / 8, -4 / 8), 7: (1 / 8, -7 / 8)}
RLOO = {1: (1.0, -1 / 7), 2: (6 / 7, -2 / 7), 4: (4 / 7, -4 / 7), 7: (1 / 7, -1.0)}
GROUP = {1: (2.4748737, -0.3535534), 2: (1.6201852, -0.5400617), 4: (0.9354143, -0.9354143), 7: (0.3535534, -2.4748737)}


def _binary(right: int, total: int = K) -> list[float]:
    return [1.0] * right + [0.0] * (total - right)


@pytest.mark.parametrize(("name", "table"), [("centred", CENTRED), ("rloo", RLOO), ("group", GROUP)])
@pytest.mark.parametrize("right", [1, 2, 4, 7])
def test_advantages_of_binary_rewards(name: str, table: dict[int, tuple[float, float]], right: int) -> None:
    (advantages,) = get_advantage(name)([_binary(right)])
    positive, negative = table[right]
    assert advantages == pytest.approx([positive] * right + [negative] * (K - right), abs=1e-6)


def test_batch_divides_by_the_deviation_of_all_live_groups() -> None:
    # groups (1, 0) and (1, 1, 1, 0): centred (+-1/2) and (1/4 three times, -3/4); squares sum to 2/4 + 3/16 + 9/16 = 5/4
    # over 6 rollouts -> deviation sqrt(5/24); the silent third group has no part in it
    first, second, third = get_advantage("batch")([[1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    deviation = math.sqrt(5 / 24)
    assert first == pytest.approx([0.5 / deviation, -0.5 / deviation], abs=1e-12)
    assert second == pytest.approx([0.25 / deviation] * 3 + [-0.75 / deviation], abs=1e-12)
    assert third == [0.0, 0.0, 0.0]


def test_batch_of_one_group_has_unit_deviation() -> None:
    (advantages,) = get_advantage("batch")([[1.0, 0.0, 0.0, 0.3]])
    assert sum(value**2 for value in advantages) / 4 == pytest.approx(1.0, abs=1e-12)


def test_batch_without_a_live_group_is_zero() -> None:
    assert get_advantage("batch")([[0.0, 0.0], [None, 1.0]]) == [[0.0, 0.0], [0.0, 0.0]]


def test_rewards_that_are_not_binary() -> None:
    # rewards 1, 0, -0.1, 0.5: mean 0.35; deviations .65, -.35, -.45, .15; squares sum to .77; ddof 1: sqrt(.77 / 3)
    rewards = [1.0, 0.0, -0.1, 0.5]
    centred = [0.65, -0.35, -0.45, 0.15]
    assert get_advantage("centred")([rewards])[0] == pytest.approx(centred, abs=1e-12)
    assert get_advantage("rloo")([rewards])[0] == pytest.approx([value * 4 / 3 for value in centred], abs=1e-12)
    deviation = math.sqrt(0.77 / 3)
    assert get_advantage("group")([rewards])[0] == pytest.approx([value / deviation for value in centred], abs=1e-12)


def test_rloo_is_the_reward_less_the_mean_of_the_others() -> None:
    rewards = [0.3, 1.0, -0.1, 0.0, 0.7]
    (advantages,) = get_advantage("rloo")([rewards])
    for index, advantage in enumerate(advantages):
        others = [reward for place, reward in enumerate(rewards) if place != index]
        assert advantage == pytest.approx(rewards[index] - sum(others) / 4, abs=1e-12)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_an_unjudged_rollout_leaves_its_group_before_the_mean(name: str) -> None:
    # the judged ones get what they would get without it
    judged = [1.0, 0.0, 0.0, 1.0, 0.0]
    with_gaps: list[float | None] = [1.0, None, 0.0, 0.0, None, 1.0, 0.0]
    estimate = get_advantage(name)
    (expected,), (found,) = estimate([judged]), estimate([with_gaps])
    assert [found[index] for index in (0, 2, 3, 5, 6)] == pytest.approx(expected, abs=1e-12)
    assert found[1] == found[4] == 0.0


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize(
    "rewards", [[0.0] * 8, [1.0] * 8, [0.1] * 7, [0.1 + 0.2] * 3, [-0.1] * 6, [None, None], [None, 0.7, None], [1.0]]
)
def test_a_group_without_a_difference_gets_exactly_zero(name: str, rewards: Sequence[float | None]) -> None:
    silent, live = get_advantage(name)([rewards, [1.0, 0.0]])
    assert silent == [0.0] * len(rewards)
    assert live[0] > 0 > live[1]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_permuting_a_group_permutes_its_advantages(name: str) -> None:
    generator = random.Random(0)
    rewards = [[generator.choice([0.0, 1.0, -0.1, 0.5, None]) for _ in range(8)] for _ in range(20)]
    order = generator.sample(range(8), 8)
    estimate = get_advantage(name)
    plain = estimate(rewards)
    permuted = estimate([[group[index] for index in order] for group in rewards])
    for group, other in zip(plain, permuted, strict=True):
        assert other == pytest.approx([group[index] for index in order], abs=1e-12)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_of_a_group_sum_to_zero_and_order_as_the_rewards(name: str) -> None:
    rewards = [0.3, 1.0, -0.1, 0.0, 0.7, 0.7]
    (advantages,) = get_advantage(name)([rewards])
    assert sum(advantages) == pytest.approx(0.0, abs=1e-12)
    assert sorted(range(6), key=lambda index: (rewards[index], index)) == sorted(
        range(6), key=lambda index: (advantages[index], index)
    )


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"learning\.advantage 'gae' does not exist; known: centred, group, batch, rloo"
    ):
        get_advantage("gae")
