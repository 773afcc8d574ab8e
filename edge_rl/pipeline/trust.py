"""Proof that the rollouts are those of the policy that is trained, and that the base stays as it was."""

from collections.abc import Sequence

import torch

from edge_rl.errors import EngineError
from edge_rl.learning.learner import Learner
from edge_rl.types import Rollout, ScoredGroup

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.05}
"""Mean gap between engine and trainer in nats per token that the arithmetic of a dtype explains."""
QUANTISED_TOLERANCE = 0.1
NUM_ROLLOUTS = 8
"""A batch that is scored by both sides."""
TELLING = 2.0
"""So many times the tolerance must base and policy be apart for the check to say which of them the engine has."""


def check_engine(
    learner: Learner, groups: Sequence[ScoredGroup], *, policy_version: int, dtype: torch.dtype, is_quantised: bool
) -> str:
    """Compare engine and trainer on some rollouts of a step, before its update; return one line with the numbers.

    Raises: EngineError beyond the tolerance of the dtype, and where the engine agrees with the base instead.
    """
    rollouts = fresh_rollouts(groups, policy_version)
    if not rollouts:
        return "no token of this policy to compare engine and trainer by"
    tolerance = QUANTISED_TOLERANCE if is_quantised else TOLERANCE[dtype]
    own, base = learner.engine_gaps(rollouts, policy_version=policy_version)
    if own > tolerance and base <= tolerance:
        raise EngineError(
            f"the engine samples from the base without the adapter: its log-probabilities differ from the base's by {base:.5f} "
            f"nats per token and from the trained policy's by {own:.5f}; the adapter did not reach it"
        )
    if own > tolerance:
        raise EngineError(
            f"engine and trainer differ by {own:.5f} nats per token, allowed are {tolerance}: the rollouts are not those of "
            "the policy that is trained; give both the same dtype and quantisation"
        )
    if base < TELLING * tolerance:
        return f"engine and trainer differ by {own:.1e} nats per token; the adapter changes too little yet to be told from none"
    return f"engine and trainer differ by {own:.1e} nats per token, the base without adapter would by {base:.1e}"


def fresh_rollouts(groups: Sequence[ScoredGroup], policy_version: int) -> list[Rollout]:
    """Return the first member of each group that this policy version sampled, at most NUM_ROLLOUTS."""
    found = [
        next((rollout for rollout in group.group.rollouts if policy_version in rollout.policy_versions), None)
        for group in groups
    ]
    return [rollout for rollout in found if rollout is not None][:NUM_ROLLOUTS]
