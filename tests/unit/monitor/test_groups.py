import math
from dataclasses import replace

import pytest

from edge_rl.monitor.groups import group_metrics
from edge_rl.types import (
    Author,
    Execution,
    ExecutionStatus,
    Group,
    Prompt,
    Reward,
    Rollout,
    ScoredGroup,
    Segment,
    StopReason,
    Verdict,
)

OK, FAILED = ExecutionStatus.OK, ExecutionStatus.ERROR


def _rollout(
    member: int, num_tokens: int, runs: tuple[ExecutionStatus, ...], stop: StopReason = StopReason.STOP
) -> Rollout:
    segment = Segment(author=Author.POLICY, token_ids=(7,) * num_tokens, behaviour_logprobs=(0.0,) * num_tokens)
    tool = Segment(author=Author.TOOL, token_ids=(8, 8, 8))
    return Rollout(
        prompt=Prompt(sample_id="s", token_ids=(1,)),
        group_id="g",
        member=member,
        segments=(segment, tool),
        stop_reason=stop,
        executions=tuple(Execution(status=status, stdout="") for status in runs),
    )


def _group(rollouts: list[Rollout], correct: list[bool | None], rewards: list[float | None]) -> ScoredGroup:
    return ScoredGroup(
        group=Group(id="g", sample_id="s", rollouts=tuple(rollouts), born=0),
        verdicts=tuple(Verdict(correct=value, reason="") for value in correct),
        rewards=tuple(Reward(total=value) for value in rewards),
    )


def test_group_metrics_by_hand() -> None:
    mixed = _group(
        [_rollout(0, 10, (OK,)), _rollout(1, 20, (FAILED, FAILED)), _rollout(2, 30, (), StopReason.LENGTH)],
        [True, False, None],
        [1.0, -0.1, None],
    )
    all_right = _group([_rollout(0, 4, (FAILED, OK)), _rollout(1, 6, (OK,))], [True, True], [1.0, 1.0])
    all_wrong = _group([_rollout(0, 8, ()), _rollout(1, 2, ())], [False, False], [0.0, 0.0])
    metrics = group_metrics([mixed, all_right, all_wrong])
    assert metrics["reward/mean"] == pytest.approx((1.0 - 0.1 + 1.0 + 1.0) / 6, abs=1e-9)
    assert metrics["reward/solve_rate"] == pytest.approx(3 / 6)
    assert [metrics[f"groups/{name}"] for name in ("count", "live", "all_right", "all_wrong", "silent")] == [
        3,
        1,
        1,
        1,
        2,
    ]
    assert (metrics["rollout/count"], metrics["rollout/unjudged"]) == (7, 1)
    assert metrics["rollout/tokens"] == pytest.approx(80 / 7)
    assert metrics["rollout/code_share"] == pytest.approx(4 / 7)
    assert metrics["rollout/code_failed"] == pytest.approx(1 / 4)
    assert metrics["rollout/truncated"] == pytest.approx(1 / 7)
    assert metrics["rollout/garbled"] == 0.0
    assert metrics["rollout/shots"] == 0.0


def test_parts_and_signals_are_means_over_the_rollouts_that_have_them() -> None:
    group = _group([_rollout(member, 1, ()) for member in range(3)], [True, False, None], [0.9, 0.0, None])
    rewards = (
        Reward(total=0.9, breakdown={"correctness": 1.0, "code": -0.1}, signals={"format": 1.0, "audit_gap": 0.4}),
        Reward(total=0.0, breakdown={"correctness": 0.0, "code": 0.0}, signals={"format": 0.0}),
        Reward(total=None, signals={"format": 0.0}),
    )
    metrics = group_metrics([replace(group, rewards=rewards)])
    assert metrics["reward/correctness"] == 0.5
    assert metrics["reward/code"] == pytest.approx(-0.05)
    assert metrics["signal/format"] == pytest.approx(1 / 3)
    assert metrics["signal/audit_gap"] == 0.4


def test_shaped_rewards_make_a_group_speak_though_none_is_right() -> None:
    group = _group([_rollout(0, 1, (FAILED,)), _rollout(1, 1, ())], [False, False], [-0.1, 0.0])
    metrics = group_metrics([group])
    assert (metrics["groups/live"], metrics["groups/all_wrong"], metrics["groups/silent"]) == (0, 1, 0)


def test_step_without_a_judged_rollout_has_no_rate() -> None:
    group = _group([_rollout(0, 1, ()), _rollout(1, 1, ())], [None, None], [None, None])
    metrics = group_metrics([group])
    assert math.isnan(metrics["reward/mean"])
    assert math.isnan(metrics["reward/solve_rate"])
    assert (metrics["groups/all_right"], metrics["groups/all_wrong"], metrics["groups/silent"]) == (0, 0, 1)


def test_empty_step_has_counts_of_zero() -> None:
    metrics = group_metrics([])
    assert (metrics["groups/count"], metrics["rollout/count"]) == (0, 0)
    assert math.isnan(metrics["rollout/tokens"])
