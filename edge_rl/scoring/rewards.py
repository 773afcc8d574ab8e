"""Verdicts and facts of a rollout to a reward. Knows no group: comparing rewards is the advantage's work.

Every shaped reward keeps the order of correctness: whatever the facts, a right completion gets at least as much as any wrong
one. An unjudged completion gets None from all of them.
"""

import math
from collections.abc import Callable

from edge_rl.config import ScoringConfig, suggest
from edge_rl.errors import ConfigError
from edge_rl.scoring.extraction import commit
from edge_rl.types import ExecutionStatus, Reward, Rollout, StopReason, Verdict

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
    failures = [execution.status is not ExecutionStatus.OK for execution in rollout.executions]
    fine = -settings.code_penalty if failures and all(failures) else 0.0
    return _shaped(rollout, verdict, settings, "code", fine)


def length_tanh(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return 1[right] (1 - w tanh(d / s)), d the tokens outside [length_low, length_high], w length_weight.

    Gated by correctness: otherwise a group of wrong completions would learn length and nothing else.
    """
    length = rollout.num_policy_tokens
    distance = max(0, length - settings.length_high) + max(0, settings.length_low - length)
    fine = -settings.length_weight * math.tanh(distance / settings.length_scale) if verdict.correct else 0.0
    return _shaped(rollout, verdict, settings, "length", fine)


def soft_overlong(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return `binary` less up to 1 that grows over the last `overlong_buffer` tokens before length_high.

    Source: DAPO, arXiv:2503.14476, eq. 13. A right completion ends at 0 at worst, a wrong one at -1.
    """
    length = rollout.num_policy_tokens
    begin = settings.length_high - settings.overlong_buffer
    fine = -min(1.0, max(0.0, (length - begin) / settings.overlong_buffer))
    return _shaped(rollout, verdict, settings, "overlong", fine)


def cosine(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return 1 falling to 0.5 with length for a right completion, -1 rising to -0.5 for a wrong one.

    Source: arXiv:2502.03373, section 4 (CosFn); end points as in TRL's get_cosine_scaled_reward. Full length: length_high.
    """
    if verdict.correct is None:
        return Reward(total=None)
    share = min(1.0, rollout.num_policy_tokens / settings.length_high)
    wave = 0.25 * (1.0 + math.cos(math.pi * share))
    total = 0.5 + wave if verdict.correct else -0.5 - wave
    correctness = float(verdict.correct)
    return Reward(total=total, breakdown={"correctness": correctness, "length": total - correctness})


def dler_truncation(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return 1 for a right completion of at most length_high tokens that was not cut off, else 0.

    Source: DLER, arXiv:2510.15110 (R = 1[correct and L <= L_target]).
    """
    return truncated_at(settings.length_high, rollout, verdict, settings)


def truncated_at(limit: int, rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return 1 for a right completion of at most `limit` tokens that was not cut off, else 0."""
    is_long = rollout.num_policy_tokens > limit or rollout.stop_reason is StopReason.LENGTH
    fine = -1.0 if verdict.correct and is_long else 0.0
    return _shaped(rollout, verdict, settings, "truncation", fine)


def answer_format(rollout: Rollout, verdict: Verdict, settings: ScoringConfig) -> Reward:
    """Return `binary` plus format_weight where the completion commits to exactly one marked value (box, ####, tag)."""
    weight = settings.format_weight if is_marked(rollout.policy_text) else 0.0
    return _shaped(rollout, verdict, settings, "format", weight)


def is_marked(completion: str) -> bool:
    """Return whether a completion commits to exactly one marked value."""
    commitment = commit(completion)
    return commitment.route in ("box", "marker", "tag") and len(commitment.values) == 1


REWARDS: dict[str, RewardFunction] = {
    "binary": binary,
    "code_penalty": code_penalty,
    "length_tanh": length_tanh,
    "soft_overlong": soft_overlong,
    "cosine": cosine,
    "dler_truncation": dler_truncation,
    "format": answer_format,
}
"""Rewards of one rollout. To add one: write a function here, add the line, add a test with a number computed by hand."""


def get_reward(name: str) -> RewardFunction:
    """Return the reward function called `name`.

    Raises: ConfigError if there is none.
    """
    if name not in REWARDS:
        raise ConfigError(f"scoring.reward {name!r} does not exist; {suggest(name, sorted(REWARDS))}")
    return REWARDS[name]


def in_order(total: float, correct: bool, middle: float) -> float:
    """Return a total that no wrong completion can bring above a right one: bounded by the middle from its own side."""
    return max(total, middle) if correct else min(total, middle)


def _shaped(rollout: Rollout, verdict: Verdict, settings: ScoringConfig, part: str, value: float) -> Reward:
    base = binary(rollout, verdict, settings)
    if base.total is None:
        return base
    return Reward(total=base.total + value, breakdown={**base.breakdown, part: value})
