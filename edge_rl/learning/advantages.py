"""Rewards of a group -> advantages. Plain numbers; knows no model.

Every estimator takes the rewards of all groups of a step (None = unjudged) and returns one advantage per rollout. An unjudged
rollout leaves its group before the mean is taken and gets 0.0. A group whose judged rewards are equal gets exactly 0.0.
"""

import math
from collections.abc import Callable, Sequence

from edge_rl.errors import ConfigError

Rewards = Sequence[Sequence[float | None]]
Advantages = list[list[float]]


def _judged(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _is_silent(rewards: Sequence[float | None]) -> bool:
    return len(set(_judged(rewards))) < 2


def _centre(rewards: Sequence[float | None]) -> list[float]:
    # Exactly zero for equal rewards: a mean of 0.1s is not 0.1 in floating point.
    if _is_silent(rewards):
        return [0.0] * len(rewards)
    judged = _judged(rewards)
    mean = math.fsum(judged) / len(judged)
    return [0.0 if reward is None else reward - mean for reward in rewards]


def centred(groups: Rewards) -> Advantages:
    """Return reward minus the group's mean.

    Source: GRPO without the division by the standard deviation, Dr. GRPO, arXiv:2503.20783.
    """
    return [_centre(rewards) for rewards in groups]


def group_scaled(groups: Rewards) -> Advantages:
    """Return (reward - mean) / sample standard deviation of the group (ddof = 1, as TRL).

    Source: GRPO, arXiv:2402.03300, section 4.1.2.
    """
    advantages: Advantages = []
    for rewards in groups:
        centred_rewards = _centre(rewards)
        count = len(_judged(rewards))
        if _is_silent(rewards):
            advantages.append(centred_rewards)
            continue
        deviation = math.sqrt(math.fsum(value**2 for value in centred_rewards) / (count - 1))
        advantages.append([value / deviation for value in centred_rewards])
    return advantages


def batch_scaled(groups: Rewards) -> Advantages:
    """Return (reward - group mean) / standard deviation over all judged rollouts of groups that are not silent.

    Only divides: subtracting the batch mean again would give silent groups an advantage.
    Source: Lite PPO, arXiv:2508.08221; silent groups dropped first: DLER, arXiv:2510.15110.
    """
    values = [_centre(rewards) for rewards in groups]
    live = [
        value
        for rewards, group_values in zip(groups, values, strict=True)
        if not _is_silent(rewards)
        for reward, value in zip(rewards, group_values, strict=True)
        if reward is not None
    ]
    if not live:
        return values
    deviation = math.sqrt(math.fsum(value**2 for value in live) / len(live))
    return [[value / deviation for value in group_values] for group_values in values]


def leave_one_out(groups: Rewards) -> Advantages:
    """Return reward minus the mean of the other judged rewards: K / (K - 1) times the centred reward.

    Source: RLOO, arXiv:2402.14740, eq. 8.
    """
    advantages: Advantages = []
    for rewards in groups:
        count = len(_judged(rewards))
        factor = count / (count - 1) if count > 1 else 0.0
        advantages.append([value * factor for value in _centre(rewards)])
    return advantages


ADVANTAGES: dict[str, Callable[[Rewards], Advantages]] = {
    "centred": centred,
    "group": group_scaled,
    "batch": batch_scaled,
    "rloo": leave_one_out,
}
"""To add one: write the function here, add the line, a hand-computed test and a mutation."""


def get_advantage(name: str) -> Callable[[Rewards], Advantages]:
    """Return the estimator called `name`.

    Raises: ConfigError if there is none.
    """
    if name not in ADVANTAGES:
        raise ConfigError(f"learning.advantage {name!r} does not exist; known: {', '.join(ADVANTAGES)}")
    return ADVANTAGES[name]
