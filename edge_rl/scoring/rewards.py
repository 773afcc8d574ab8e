"""Verdicts and facts of a rollout to a reward. Knows no group: comparing rewards is the advantage's work."""

from collections.abc import Callable

from edge_rl.config import ScoringConfig, suggest
from edge_rl.errors import ConfigError
from edge_rl.types import ExecutionStatus, Reward, Rollout, Verdict

RewardFunction = Callable[[Rollout, Verdict, ScoringConfig], Reward]


def binary(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return 1 for a right completion, 0 for a wrong one, None for one that could not be judged."""
    del rollout, settings
    if verdict.correct is None:
        return Reward(total=None)
    correctness = float(verdict.correct)
    return Reward(total=correctness, breakdown={"correctness": correctness})


def code_penalty(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return `binary`, less `code_penalty` where code ran and every block failed; no code, no penalty.

    Source: CoRT, arXiv:2506.09820 (R = R_a + 0.1 R_c). Its public code also fines a completion without any block,
    because "all failed" is true of an empty list; here that case costs nothing.
    """
    base = binary(rollout, verdict, settings)
    if base.total is None:
        return base
    failures = [execution.status is not ExecutionStatus.OK for execution in rollout.executions]
    fine = -settings.code_penalty if failures and all(failures) else 0.0
    return Reward(total=base.total + fine, breakdown={**base.breakdown, "code": fine})


REWARDS: dict[str, RewardFunction] = {
    "binary": binary,
    "code_penalty": code_penalty,
}
"""To add one: write a function here, add the line, add a test with a number computed by hand."""


def get_reward(name: str) -> RewardFunction:
    """Return the reward function called `name`.

    Raises: ConfigError if there is none.
    """
    if name not in REWARDS:
        raise ConfigError(f"scoring.reward {name!r} does not exist; {suggest(name, sorted(REWARDS))}")
    return REWARDS[name]
