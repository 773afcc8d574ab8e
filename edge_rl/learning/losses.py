"""Policy losses: tensors in, (loss, metrics) out. Knows no model, device or configuration file.

Each loss is a sum over the microbatch divided by a count of the whole optimizer step, so that microbatches add up exactly to
the step. With one pass over on-policy rollouts every ratio is 1: the value of the loss then says nothing, its gradient does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from edge_rl.errors import ConfigError

# Shapes: B rollouts of the microbatch, T completion tokens (padded).
Metrics = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The rollouts of one microbatch. Values where the mask is False are never read."""

    logprobs_BT: Tensor
    """Natural log-probabilities under the policy that is trained; carries the gradient."""
    old_logprobs_BT: Tensor
    """The same tokens under the policy that sampled them."""
    advantages_BT: Tensor
    """Weight of each token; equal along a rollout unless the credit is per turn."""
    loss_mask_BT: Tensor
    """bool; True on tokens the policy wrote."""
    reference_logprobs_BT: Tensor | None = None
    """The same tokens under the reference; needed where kl_coefficient > 0."""
    num_loss_tokens: int
    """Policy tokens of the whole optimizer step."""
    num_rollouts: int
    """Rollouts of the whole optimizer step."""
    correction_BT: Tensor | None = None
    """Weight of each token's objective for the gap between engine and trainer; a constant. None = 1 everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Constants of the losses."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0
    kl_coefficient: float = 0.0
    max_tokens: int = 1
    """L_max of dr_grpo."""
    positive_temperature: float = 1.0
    """Temperature of sapo's gate where the advantage is positive."""
    negative_temperature: float = 1.05
    """The same where it is not; a higher one makes the gate narrower."""


Loss = Callable[[LossInputs, LossSettings], tuple[Tensor, Metrics]]

# exp() of a larger gap is infinite or zero for every purpose; the bound keeps its gradient finite.
MAX_LOG_RATIO = 20.0


def log_ratio(inputs: LossInputs) -> Tensor:
    """Return [B, T] log pi / pi_old, 0 where masked, clamped to +-20."""
    zeros_BT = torch.zeros_like(inputs.logprobs_BT)
    gap_BT = torch.where(inputs.loss_mask_BT, inputs.logprobs_BT - inputs.old_logprobs_BT, zeros_BT)
    return gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_terms(ratio_BT: Tensor, advantages_BT: Tensor, settings: LossSettings) -> Tensor:
    """Return the [B, T] clipped surrogate objective per token.

    min(r A, clip(r, 1 - low, 1 + high) A), and not below dual_clip * A where A < 0.
    Source: PPO, arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476, eq. 10; dual clip: arXiv:1912.09729, eq. 5.
    """
    bounded_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    objective_BT = torch.minimum(ratio_BT * advantages_BT, bounded_BT * advantages_BT)
    floor_BT = settings.dual_clip * advantages_BT
    return torch.where(advantages_BT < 0, torch.maximum(objective_BT, floor_BT), objective_BT)


def kl_terms(inputs: LossInputs) -> Tensor:
    """Return the [B, T] k3 estimate of KL(policy || reference), 0 where masked; never negative.

    Source: Schulman, "Approximating KL divergence" (k3); GRPO, arXiv:2402.03300, eq. 4.
    """
    assert inputs.reference_logprobs_BT is not None, "the learner gives reference logprobs where kl_coefficient > 0"
    zeros_BT = torch.zeros_like(inputs.logprobs_BT)
    gap_BT = torch.where(inputs.loss_mask_BT, inputs.reference_logprobs_BT - inputs.logprobs_BT, zeros_BT)
    gap_BT = gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap_BT.exp() - gap_BT - 1


def _finish(
    objective_BT: Tensor, ratio_BT: Tensor, inputs: LossInputs, settings: LossSettings
) -> tuple[Tensor, Metrics]:
    """Weigh for the engine, subtract the KL term where there is one, and collect sums over tokens for the step's metrics."""
    mask_BT = inputs.loss_mask_BT
    metrics: Metrics = {}
    if inputs.correction_BT is not None:
        objective_BT = objective_BT * inputs.correction_BT
    if settings.kl_coefficient > 0:
        kl_BT = kl_terms(inputs)
        objective_BT = objective_BT - settings.kl_coefficient * kl_BT
        metrics["kl"] = kl_BT.detach().sum() / inputs.num_loss_tokens
    with torch.no_grad():
        positive_BT = inputs.advantages_BT > 0
        high_BT = (ratio_BT > 1 + settings.clip_high) & positive_BT & mask_BT
        low_BT = (ratio_BT < 1 - settings.clip_low) & (inputs.advantages_BT < 0) & mask_BT
        metrics["ratio"] = (ratio_BT * mask_BT).sum() / inputs.num_loss_tokens
        metrics["clip_high"] = high_BT.sum() / inputs.num_loss_tokens
        metrics["clip_low"] = low_BT.sum() / inputs.num_loss_tokens
    return objective_BT * mask_BT, metrics


def _mean_of_rollouts(objective_BT: Tensor, inputs: LossInputs) -> Tensor:
    """Return the mean over tokens inside each rollout, then over the rollouts of the step."""
    length_B = inputs.loss_mask_BT.sum(dim=1).clamp(min=1)
    return (objective_BT.sum(dim=1) / length_B).sum() / inputs.num_rollouts


def dapo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return the clipped loss, a mean over all policy tokens of the step.

    Source: DAPO, arXiv:2503.14476, eq. 8.
    """
    ratio_BT = log_ratio(inputs).exp()
    objective_BT, metrics = _finish(clipped_terms(ratio_BT, inputs.advantages_BT, settings), ratio_BT, inputs, settings)
    return -objective_BT.sum() / inputs.num_loss_tokens, metrics


def grpo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return the clipped loss, a mean over tokens inside each rollout, then over rollouts.

    Source: GRPO, arXiv:2402.03300, eq. 3.
    """
    ratio_BT = log_ratio(inputs).exp()
    objective_BT, metrics = _finish(clipped_terms(ratio_BT, inputs.advantages_BT, settings), ratio_BT, inputs, settings)
    return -_mean_of_rollouts(objective_BT, inputs), metrics


def dr_grpo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return the clipped loss, a sum over tokens divided by the constant L_max, then a mean over rollouts.

    Source: Dr. GRPO, arXiv:2503.20783, section 3.2.
    """
    ratio_BT = log_ratio(inputs).exp()
    objective_BT, metrics = _finish(clipped_terms(ratio_BT, inputs.advantages_BT, settings), ratio_BT, inputs, settings)
    return -objective_BT.sum() / (inputs.num_rollouts * settings.max_tokens), metrics


def gspo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return the clipped loss with one ratio per rollout, the geometric mean of its token ratios; mean as in GRPO.

    Source: GSPO, arXiv:2507.18071, eq. 5-7 (their clip range is about 3e-4 / 4e-4).
    """
    length_B1 = inputs.loss_mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    ratio_B1 = (log_ratio(inputs).sum(dim=1, keepdim=True) / length_B1).exp()
    ratio_BT = ratio_B1.expand_as(inputs.logprobs_BT)
    objective_BT, metrics = _finish(clipped_terms(ratio_BT, inputs.advantages_BT, settings), ratio_BT, inputs, settings)
    return -_mean_of_rollouts(objective_BT, inputs), metrics


def cispo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return REINFORCE weighted by a ratio that is capped from above and carries no gradient: no token loses its gradient.

    The cap is 1 + clip_high. Mean over all policy tokens of the step.
    Source: CISPO (MiniMax-M1), arXiv:2506.13585, eq. 4-5.
    """
    ratio_BT = log_ratio(inputs).exp()
    weight_BT = ratio_BT.detach().clamp(max=1 + settings.clip_high)
    terms_BT = weight_BT * inputs.advantages_BT * torch.where(inputs.loss_mask_BT, inputs.logprobs_BT, 0.0)
    objective_BT, metrics = _finish(terms_BT, ratio_BT, inputs, settings)
    return -objective_BT.sum() / inputs.num_loss_tokens, metrics


def sapo(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Metrics]:
    """Return the loss whose ratio passes a soft gate instead of a clip; mean as in GRPO.

    The gate is (4 / t) sigmoid(t (r - 1)), t the temperature of the advantage's sign: its slope is 1 at r = 1 and falls on
    both sides, so no token loses its gradient at once.
    Source: Soft Adaptive Policy Optimization, arXiv:2511.20347 (temperatures 1.0 and 1.05 are theirs).
    """
    ratio_BT = log_ratio(inputs).exp()
    positive, negative = (
        ratio_BT.new_tensor(t) for t in (settings.positive_temperature, settings.negative_temperature)
    )
    temperature_BT = torch.where(inputs.advantages_BT > 0, positive, negative)
    gate_BT = torch.sigmoid(temperature_BT * (ratio_BT - 1)) * 4 / temperature_BT
    objective_BT, metrics = _finish(gate_BT * inputs.advantages_BT, ratio_BT, inputs, settings)
    return -_mean_of_rollouts(objective_BT, inputs), metrics


LOSSES: dict[str, Loss] = {
    "dapo": dapo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
}
"""To add one: write the function here, add the line, a hand-computed test, a parity test where TRL has it, a mutation."""


def get_loss(name: str) -> Loss:
    """Return the loss called `name`.

    Raises: ConfigError if there is none.
    """
    if name not in LOSSES:
        raise ConfigError(f"learning.loss {name!r} does not exist; known: {', '.join(LOSSES)}")
    return LOSSES[name]
