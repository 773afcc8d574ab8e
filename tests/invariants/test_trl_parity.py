"""Our losses against those of TRL's GRPOTrainer on the same tensors: TRL is the oracle.

TRL's loss is a method that asks a model for log-probabilities. Here a trainer made without its constructor gets the
attributes that the method reads and hands out given log-probabilities, so that TRL's own lines compute the loss.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from edge_rl.learning.losses import LOSSES, LossInputs, LossSettings

# Shapes: B rollouts, T completion tokens (padded).
NUM_ROLLOUTS = 6
NUM_TOKENS = 9
MAX_TOKENS = 11
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.2, 0.28, 3.0

# Our name -> TRL's names for the same loss.
TRL_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    # TRL's epsilon_high is the cap itself here, ours is its distance from 1.
    "cispo": {"loss_type": "cispo", "epsilon_high": 1 + CLIP_HIGH},
    "sapo": {"loss_type": "sapo"},
}


def _batch(seed: int, *, spread: float) -> dict[str, Tensor]:
    """Ragged rollouts with tool tokens inside, ratios on both sides of the clip range, advantages of both signs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old_BT = -normal(NUM_ROLLOUTS, NUM_TOKENS).abs() - 0.1
    lengths_B = torch.randint(2, NUM_TOKENS + 1, (NUM_ROLLOUTS,), generator=generator)
    completion_BT = torch.arange(NUM_TOKENS) < lengths_B.unsqueeze(1)
    is_tool_BT = torch.rand(NUM_ROLLOUTS, NUM_TOKENS, generator=generator) < 0.25
    is_tool_BT[:, 0] = False
    return {
        "logprobs_BT": old_BT + spread * normal(NUM_ROLLOUTS, NUM_TOKENS),
        "old_BT": old_BT,
        "reference_BT": old_BT + 0.3 * normal(NUM_ROLLOUTS, NUM_TOKENS),
        "advantages_B": normal(NUM_ROLLOUTS),
        "completion_BT": completion_BT,
        "policy_BT": ~is_tool_BT,
    }


def _ours(name: str, batch: Mapping[str, Tensor], *, kl_coefficient: float, parts: int) -> tuple[float, Tensor]:
    logprobs_BT = batch["logprobs_BT"].clone().requires_grad_()
    mask_BT = batch["completion_BT"] & batch["policy_BT"]
    settings = LossSettings(
        clip_low=CLIP_LOW,
        clip_high=CLIP_HIGH,
        dual_clip=DUAL_CLIP,
        kl_coefficient=kl_coefficient,
        max_tokens=MAX_TOKENS,
    )
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(NUM_ROLLOUTS).chunk(parts):
        inputs = LossInputs(
            logprobs_BT=logprobs_BT[rows],
            old_logprobs_BT=batch["old_BT"][rows],
            advantages_BT=batch["advantages_B"][rows].unsqueeze(1).expand(-1, NUM_TOKENS),
            loss_mask_BT=mask_BT[rows],
            reference_logprobs_BT=batch["reference_BT"][rows],
            num_loss_tokens=int(mask_BT.sum()),
            num_rollouts=NUM_ROLLOUTS,
        )
        total = total + LOSSES[name](inputs, settings)[0]
    total.backward()
    assert logprobs_BT.grad is not None
    return float(total.detach()), logprobs_BT.grad


class _OneProcess:
    """What the loss needs of accelerate's Accelerator where there is nothing to gather."""

    num_processes = 1

    def gather(self, values: Tensor) -> Tensor:
        return values

    def reduce(self, values: Tensor, reduction: str) -> Tensor:
        return values


def _trainer(settings: Mapping[str, Any], *, kl_coefficient: float, parts: int) -> GRPOTrainer:
    trainer: Any = object.__new__(GRPOTrainer)
    attributes: dict[str, Any] = {
        "importance_sampling_level": "token",
        "epsilon_low": CLIP_LOW,
        "epsilon_high": CLIP_HIGH,
        "beta": kl_coefficient,
        "max_completion_length": MAX_TOKENS,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": parts,
        "args": SimpleNamespace(
            delta=DUAL_CLIP,
            use_bias_correction_kl=False,
            steps_per_generation=parts,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
        ),
        "model": SimpleNamespace(training=True),
        "accelerator": _OneProcess(),
        "_metrics": {"train": defaultdict(list)},
        **settings,
    }
    for name, value in attributes.items():
        setattr(trainer, name, value)
    return trainer


def _theirs(name: str, batch: Mapping[str, Tensor], *, kl_coefficient: float, parts: int) -> tuple[float, Tensor]:
    logprobs_BT = batch["logprobs_BT"].clone().requires_grad_()
    mask_BT = batch["completion_BT"] & batch["policy_BT"]
    trainer: Any = _trainer(TRL_SETTINGS[name], kl_coefficient=kl_coefficient, parts=parts)
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(NUM_ROLLOUTS).chunk(parts):
        given = (logprobs_BT[rows], torch.zeros(len(rows), NUM_TOKENS), None)
        trainer._get_per_token_logps_and_entropies = Mock(return_value=given)
        inputs = {
            "prompt_ids": torch.zeros(len(rows), 2, dtype=torch.long),
            "prompt_mask": torch.ones(len(rows), 2, dtype=torch.long),
            "completion_ids": torch.zeros(len(rows), NUM_TOKENS, dtype=torch.long),
            "completion_mask": batch["completion_BT"][rows].long(),
            "tool_mask": batch["policy_BT"][rows].long(),
            "advantages": batch["advantages_B"][rows],
            "old_per_token_logps": batch["old_BT"][rows],
            "ref_per_token_logps": batch["reference_BT"][rows],
            "num_items_in_batch": mask_BT.sum(),
        }
        total = total + trainer._compute_loss(None, inputs)
    total.backward()
    assert logprobs_BT.grad is not None
    return float(total.detach()), logprobs_BT.grad


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
@pytest.mark.parametrize("spread", [0.0, 0.05, 0.8])
@pytest.mark.parametrize("name", sorted(TRL_SETTINGS))
def test_loss_and_gradient_equal_those_of_trl(name: str, spread: float, kl_coefficient: float, parts: int) -> None:
    for seed in range(5):
        batch = _batch(seed, spread=spread)
        our_loss, our_gradient_BT = _ours(name, batch, kl_coefficient=kl_coefficient, parts=parts)
        their_loss, their_gradient_BT = _theirs(name, batch, kl_coefficient=kl_coefficient, parts=parts)
        assert our_loss == pytest.approx(their_loss, abs=1e-5)
        torch.testing.assert_close(our_gradient_BT, their_gradient_BT, atol=1e-5, rtol=0)
        assert our_gradient_BT.abs().max() > 1e-3  # not an equality of zeros


def test_every_loss_of_the_table_has_its_parity() -> None:
    assert set(TRL_SETTINGS) == set(LOSSES)


def test_batches_reach_every_branch_of_the_clip() -> None:
    """Both clips and the dual clip act in the widest batches, or the parity would prove nothing about them."""
    reached = dict.fromkeys(("high", "low", "dual", "tool"), 0)
    for seed in range(5):
        batch = _batch(seed, spread=0.8)
        mask_BT = batch["completion_BT"] & batch["policy_BT"]
        ratio_BT = (batch["logprobs_BT"] - batch["old_BT"]).exp()
        positive_BT = (batch["advantages_B"] > 0).unsqueeze(1) & mask_BT
        negative_BT = (batch["advantages_B"] < 0).unsqueeze(1) & mask_BT
        reached["high"] += int(((ratio_BT > 1 + CLIP_HIGH) & positive_BT).sum())
        reached["low"] += int(((ratio_BT < 1 - CLIP_LOW) & negative_BT).sum())
        reached["dual"] += int(((ratio_BT > DUAL_CLIP) & negative_BT).sum())
        reached["tool"] += int((batch["completion_BT"] & ~batch["policy_BT"]).sum())
    assert min(reached.values()) >= 5, reached
