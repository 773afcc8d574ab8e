"""What the scored groups of one step show, as numbers. Knows records only.

Names: reward/..., groups/..., rollout/...; a share lies between 0 and 1. What left a mean is counted beside it.
"""

import math
from collections.abc import Mapping, Sequence

from edge_rl.types import ExecutionStatus, ScoredGroup, StopReason


def group_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the metrics of one step's groups.

    reward/mean            mean reward of the judged rollouts (nan where none was judged)
    reward/solve_rate      right rollouts among the judged (nan where none was judged)
    reward/<part>          mean of each part of the reward over the rollouts that have it
    signal/<name>          mean of what was measured beside the reward: format = share with exactly one marked answer
    groups/count           groups; live = some right and some wrong, so they say something about correctness
    groups/live, groups/all_right, groups/all_wrong
    groups/silent          groups whose judged rewards are all equal: exactly zero gradient
    rollout/count          rollouts; rollout/unjudged of them left every mean of rewards
    rollout/tokens         mean policy tokens
    rollout/code_share     share that ran code
    rollout/code_failed    share of those whose every run failed
    rollout/truncated      share cut at the length limit
    rollout/garbled        share that the garble filter marked
    rollout/shots          mean worked examples in the prompt
    """
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    rewards = [reward.total for group in groups for reward in group.rewards if reward.total is not None]
    num_correct = sum(group.num_correct for group in groups)
    num_judged = sum(group.num_judged for group in groups)
    with_code = [rollout for rollout in rollouts if rollout.executions]
    all_rewards = [reward for group in groups for reward in group.rewards]
    return {
        **_means("reward", [reward.breakdown for reward in all_rewards]),
        **_means("signal", [reward.signals for reward in all_rewards]),
        "reward/mean": _mean(rewards),
        "reward/solve_rate": num_correct / num_judged if num_judged else math.nan,
        "groups/count": len(groups),
        "groups/live": sum(group.is_mixed for group in groups),
        "groups/all_right": sum(0 < group.num_judged == group.num_correct for group in groups),
        "groups/all_wrong": sum(group.num_judged > 0 == group.num_correct for group in groups),
        "groups/silent": sum(_is_silent(group) for group in groups),
        "rollout/count": len(rollouts),
        "rollout/unjudged": len(rollouts) - num_judged,
        "rollout/tokens": _mean([rollout.num_policy_tokens for rollout in rollouts]),
        "rollout/code_share": _mean([float(bool(rollout.executions)) for rollout in rollouts]),
        "rollout/code_failed": _mean(
            [float(all(run.status is not ExecutionStatus.OK for run in rollout.executions)) for rollout in with_code],
            empty=0.0,
        ),
        "rollout/truncated": _mean([float(rollout.stop_reason is StopReason.LENGTH) for rollout in rollouts]),
        "rollout/shots": _mean([float(rollout.prompt.shots) for rollout in rollouts]),
        "rollout/garbled": _mean([float(rollout.stop_reason is StopReason.GARBLED) for rollout in rollouts]),
    }


def _is_silent(group: ScoredGroup) -> bool:
    return len({reward.total for reward in group.rewards if reward.total is not None}) <= 1


def _means(section: str, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row})
    return {f"{section}/{name}": _mean([row[name] for row in rows if name in row]) for name in names}


def _mean(values: Sequence[float], *, empty: float = math.nan) -> float:
    return sum(values) / len(values) if values else empty
