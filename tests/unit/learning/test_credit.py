"""Credit by rollout and by turn, with numbers computed by hand."""

import math

import pytest

from edge_rl.config import LearningConfig
from edge_rl.errors import ConfigError
from edge_rl.learning.credit import get_credit, turn_numbers, turn_returns
from edge_rl.types import Execution, ExecutionStatus, Rollout
from tests.builders import hint, make_rollout, make_scored_group, policy, tool

OK = Execution(status=ExecutionStatus.OK, stdout="5")
UNPARSED = Execution(status=ExecutionStatus.ERROR, stdout="", error="SyntaxError: invalid syntax")
FAILED = Execution(status=ExecutionStatus.ERROR, stdout="", error="NameError: name 'x' is not defined")


def _two_turns(execution: Execution = OK) -> Rollout:
    return make_rollout(policy(1, 2), tool(3), policy(4), executions=(execution,))


def _one_turn() -> Rollout:
    return make_rollout(policy(5, 6))


def _settings(**fields: object) -> LearningConfig:
    return LearningConfig.model_validate({"credit": "turn", **fields})


def test_a_rollout_gives_all_its_tokens_its_advantage() -> None:
    group = make_scored_group([1.0, 0.0], [_two_turns(), _one_turn()])
    assert get_credit(LearningConfig())([group]) == [[(0.5, 0.5, 0.5, 0.5), (-0.5, -0.5)]]


def test_a_turn_begins_where_the_policy_goes_on_after_a_tool() -> None:
    assert turn_numbers(_two_turns()) == (0, 0, 0, 1)
    assert turn_numbers(_one_turn()) == (0, 0)
    # a chunk boundary and a hint begin no turn; a second result without the policy between belongs to the same turn
    split = make_rollout(policy(1), policy(2), hint(9), policy(3), tool(4), tool(5), hint(6), policy(7))
    assert turn_numbers(split) == (0, 0, 0, 0, 0, 0, 1, 1)
    assert turn_numbers(make_rollout(policy(1), tool(2))) == (0, 0)


def test_returns_are_discounted_sums() -> None:
    rollout = make_rollout(policy(1), tool(2), policy(3), tool(4), policy(5), executions=(OK, UNPARSED))
    # rewards 0, -0.1, 1: 1; -0.1 + 0.9; 0.9 * 0.8
    assert turn_returns(rollout, 1.0, discount=0.9, fine=0.1) == pytest.approx([0.72, 0.8, 1.0], abs=1e-12)
    assert turn_returns(rollout, 1.0, discount=1.0, fine=0.0) == [1.0, 1.0, 1.0]
    assert turn_returns(rollout, 1.0, discount=0.0, fine=0.1) == [0.0, -0.1, 1.0]


def test_only_code_that_does_not_parse_is_fined() -> None:
    assert turn_returns(_two_turns(FAILED), 1.0, discount=0.9, fine=0.1) == pytest.approx([0.9, 1.0])
    assert turn_returns(_two_turns(UNPARSED), 1.0, discount=0.9, fine=0.1) == pytest.approx([0.8, 1.0])


def test_turn_advantages_are_scaled_over_all_turns_of_the_group() -> None:
    # returns 0.9, 1.0 (right, two turns) and 0 (wrong, one turn): mean 1.9/3, variance (0.81 + 1) / 3 - (1.9/3)^2
    mean = 1.9 / 3
    deviation = math.sqrt(1.81 / 3 - mean**2)
    group = make_scored_group([1.0, 0.0], [_two_turns(), _one_turn()])
    (((first, _, _, last), wrong),) = get_credit(_settings())([group])
    assert first == pytest.approx((0.9 - mean) / deviation, abs=1e-9)
    assert last == pytest.approx((1.0 - mean) / deviation, abs=1e-9)
    assert wrong == pytest.approx((-mean / deviation,) * 2, abs=1e-9)


def test_an_unjudged_member_leaves_the_group_before_the_mean() -> None:
    with_it = make_scored_group([1.0, None, 0.0], [_two_turns(), _two_turns(), _one_turn()])
    without = make_scored_group([1.0, 0.0], [_two_turns(), _one_turn()])
    (found,), (expected,) = get_credit(_settings())([with_it]), get_credit(_settings())([without])
    assert [found[0], found[2]] == [pytest.approx(values) for values in expected]
    assert found[1] == (0.0,) * 4


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_give_exactly_no_credit_however_many_turns_there_are(reward: float) -> None:
    group = make_scored_group([reward, reward], [_two_turns(), _one_turn()])
    assert get_credit(_settings())([group]) == [[(0.0,) * 4, (0.0,) * 2]]


def test_a_fine_that_levels_the_rewards_divides_by_nothing() -> None:
    # one turn each: returns 1.0 - 0.1 and 0.9
    unparsed = make_rollout(policy(1), executions=(UNPARSED,))
    group = make_scored_group([1.0, 0.9], [unparsed, _one_turn()])
    assert get_credit(_settings())([group]) == [[(0.0,), (0.0, 0.0)]]


def test_an_unknown_credit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning\.credit 'token' does not exist; known: rollout, turn, gae"):
        get_credit(_settings(credit="token"))
