"""Which token of a rollout gets which share of the credit. Knows records and numbers; no model.

A credit takes the scored groups of a step and returns one advantage per completion token. `rollout` gives every token of a
rollout the same; `turn` gives the tokens of each turn their own (GTPO).
"""

import math
from collections.abc import Callable, Sequence

from edge_rl.config import LearningConfig
from edge_rl.errors import ConfigError
from edge_rl.learning.advantages import get_advantage
from edge_rl.types import Author, ExecutionStatus, Rollout, ScoredGroup

TokenAdvantages = list[list[tuple[float, ...]]]
"""[group][rollout][T]."""
Credit = Callable[[Sequence[ScoredGroup]], TokenAdvantages]

SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


def rollout_credit(settings: LearningConfig) -> Credit:
    """Return the credit that spreads a rollout's advantage over its tokens."""
    advantage = get_advantage(settings.advantage)

    def credit(groups: Sequence[ScoredGroup]) -> TokenAdvantages:
        rewards = [[reward.total for reward in group.rewards] for group in groups]
        return [
            [(value,) * len(rollout.token_ids) for rollout, value in zip(group.group.rollouts, values, strict=True)]
            for group, values in zip(groups, advantage(rewards), strict=True)
        ]

    return credit


def turn_credit(settings: LearningConfig) -> Credit:
    """Return the credit by turns: discounted returns, scaled over all turns of the group.

    The reward of the last turn is the rollout's; a turn whose code does not parse costs turn_fine, any other is worth 0.
    The return of turn k is the sum over j >= k of turn_discount^(j - k) r_j. It is taken less the mean and over the standard
    deviation of the returns of all turns of all judged members, since a turn's number means something else in each of them.
    Source: GTPO, arXiv:2511.14846 (discount 0.9, fine 0.1). A group whose rewards are equal gets exactly 0, as elsewhere
    here: otherwise its credit would come from the number of turns alone.
    """

    def credit(groups: Sequence[ScoredGroup]) -> TokenAdvantages:
        return [_turn_advantages(group, settings) for group in groups]

    return credit


def turn_returns(rollout: Rollout, reward: float, *, discount: float, fine: float) -> list[float]:
    """Return the discounted return of each turn. Example: rewards 0, -0.1, 1 at discount 0.9 -> 0.72, 0.8, 1."""
    turns = max(turn_numbers(rollout)) + 1 if rollout.segments else 1
    rewards = [0.0] * turns
    for turn, execution in enumerate(rollout.executions[:turns]):
        if execution.status is ExecutionStatus.ERROR and execution.error.startswith(SYNTAX_ERRORS):
            rewards[turn] -= fine
    rewards[-1] += reward
    for turn in reversed(range(turns - 1)):
        rewards[turn] += discount * rewards[turn + 1]
    return rewards


def turn_numbers(rollout: Rollout) -> tuple[int, ...]:
    """Return [T] the turn of each completion token; a turn ends before the policy goes on after a tool result.

    Example: policy, policy, tool, policy -> 0, 0, 0, 1.
    """
    numbers: list[int] = []
    turn, before = 0, Author.POLICY
    for segment in rollout.segments:
        if before is Author.TOOL and segment.author is not Author.TOOL:
            turn += 1
        numbers += [turn] * len(segment.token_ids)
        before = segment.author
    return tuple(numbers)


def critic_credit(settings: LearningConfig) -> Credit:
    """Return a credit that is never asked: with a critic the learner computes advantages itself (learning/ppo.py)."""
    del settings

    def credit(groups: Sequence[ScoredGroup]) -> TokenAdvantages:
        raise ConfigError("learning.credit = gae needs the learner with a critic (edge_rl.learning.ppo.make_learner)")

    return credit


CREDITS: dict[str, Callable[[LearningConfig], Credit]] = {
    "rollout": rollout_credit,
    "turn": turn_credit,
    "gae": critic_credit,
}
"""To add one: write the function here, add the line, a hand-computed test and a mutation."""


def get_credit(settings: LearningConfig) -> Credit:
    """Return the credit that the settings name.

    Raises: ConfigError if there is none of that name.
    """
    if settings.credit not in CREDITS:
        raise ConfigError(f"learning.credit {settings.credit!r} does not exist; known: {', '.join(CREDITS)}")
    return CREDITS[settings.credit](settings)


def _turn_advantages(group: ScoredGroup, settings: LearningConfig) -> list[tuple[float, ...]]:
    rollouts = group.group.rollouts
    totals = [reward.total for reward in group.rewards]
    if len({total for total in totals if total is not None}) < 2:
        return [(0.0,) * len(rollout.token_ids) for rollout in rollouts]
    returns = [
        [] if total is None else turn_returns(rollout, total, discount=settings.turn_discount, fine=settings.turn_fine)
        for rollout, total in zip(rollouts, totals, strict=True)
    ]
    flat = [value for values in returns for value in values]
    mean = math.fsum(flat) / len(flat)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / len(flat))
    if deviation == 0.0:  # a fine can level rewards that differ
        return [(0.0,) * len(rollout.token_ids) for rollout in rollouts]
    return [
        tuple((values[turn] - mean) / deviation if values else 0.0 for turn in turn_numbers(rollout))
        for rollout, values in zip(rollouts, returns, strict=True)
    ]
