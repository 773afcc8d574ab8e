"""The gap between the engine that sampled and the trainer that learns: how large it is, and what it weighs.

An engine computes log-probabilities with other kernels, batch shapes or precision than the trainer, so rollouts that are
called on-policy come from a slightly other policy mu. The weight pi_old / mu sets that right; where the gap is large, data
is dropped instead. Knows tensors only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edge_rl.learning.losses import MAX_LOG_RATIO

# Shapes: B rollouts of the microbatch, T completion tokens (padded), N policy tokens.


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """How far the weights may go."""

    cap: float = 2.0
    """C: a token's weight is min(pi_old / mu, C)."""
    sequence_limit: float = 3.0
    """A rollout whose product of pi_old / mu lies above this, or below its inverse, gets weight 0."""


def correction_weights(gap_BT: Tensor, loss_mask_BT: Tensor, settings: CorrectionSettings) -> Tensor:
    """Return the [B, T] weights for gaps of log pi_old - log mu; 0 where masked.

    Source: truncated importance sampling per token and a mask per sequence; TRL's `vllm_importance_sampling_correction`
    has the same two, its sequence mask from above only.
    """
    gap_BT = torch.where(loss_mask_BT, gap_BT, torch.zeros_like(gap_BT)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    is_near_B = gap_BT.sum(dim=1).abs() <= torch.tensor(settings.sequence_limit, dtype=gap_BT.dtype).log()
    return gap_BT.exp().clamp(max=settings.cap) * loss_mask_BT * is_near_B.unsqueeze(1)


def drift_metrics(gap_N: Tensor, weight_N: Tensor) -> dict[str, float]:
    """Return what the gaps log pi_old - log mu of a step's policy tokens and their weights say.

    drift/mean, drift/max   mean and largest absolute gap, in nats
    drift/kl                k3 estimate of KL(mu || pi_old): mean of e^gap - gap - 1
    drift/masked            share of tokens with weight 0
    drift/ess               effective sample size of the weights as a share of the tokens: (sum w)^2 / (N sum w^2), or 0
    """
    gap_N, weight_N = gap_N.double().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), weight_N.double()
    squares = float((weight_N**2).sum())
    return {
        "drift/mean": float(gap_N.abs().mean()),
        "drift/max": float(gap_N.abs().max()),
        "drift/kl": float((gap_N.exp() - gap_N - 1).mean()),
        "drift/masked": float((weight_N == 0).double().mean()),
        "drift/ess": float(weight_N.sum()) ** 2 / (len(weight_N) * squares) if squares else 0.0,
    }
