"""Scored groups -> one optimizer step on the adapter. Knows the model; knows no text, engine or file of a run."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from edge_rl.config import LearningConfig
from edge_rl.learning.advantages import get_advantage
from edge_rl.learning.attention import SHARED_PROMPT_ATTENTION
from edge_rl.learning.collate import Item, Microbatch, collate, make_microbatches, make_rows
from edge_rl.learning.logprobs import head_logprobs
from edge_rl.learning.losses import LossInputs, LossSettings, get_loss
from edge_rl.types import ScoredGroup


class Learner:
    """Trains the adapter of a PEFT model; the base stays as it is."""

    def __init__(self, model: PeftModel, settings: LearningConfig, *, temperature: float, pad_token_id: int) -> None:
        """`temperature`: that of the rollouts, since log-probabilities depend on it."""
        self.model = model
        self._settings = settings
        self._temperature = temperature
        self._pad_token_id = pad_token_id
        self._loss = get_loss(settings.loss)
        self._advantage = get_advantage(settings.advantage)
        self._loss_settings = LossSettings(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            kl_coefficient=settings.kl_coefficient,
            max_tokens=settings.max_tokens_normaliser,
        )
        self._base = cast(PreTrainedModel, model.get_base_model())
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=settings.learning_rate, weight_decay=0.0)
        self.num_steps_taken = 0

    def update(self, groups: Sequence[ScoredGroup], *, policy_version: int) -> dict[str, float]:
        """Take one step per epoch on these groups; return the metrics of the last.

        A rollout whose advantage is exactly zero adds nothing to the gradient, so it is left out of the pass (unless the KL
        term needs it). If no rollout is left, no step is taken. A non-finite gradient is dropped and counted.
        """
        started = time.monotonic()
        items = self._weigh(groups)
        metrics: dict[str, float] = {"learning/live_rollouts": sum(len(group) for group in items)}
        if items:
            rows = make_rows(items, max_tokens=self._settings.microbatch_tokens)
            batches = [
                collate(batch, pad_token_id=self._pad_token_id, device=self._base.device)
                for batch in make_microbatches(rows, max_tokens=self._settings.microbatch_tokens)
            ]
            old: list[Tensor] | None = None
            skipped = 0.0
            for _ in range(self._settings.epochs):
                old, step_metrics = self._step(batches, old, policy_version)
                skipped += step_metrics["loss/skipped"]
                metrics |= step_metrics
            metrics["loss/skipped"] = skipped
        metrics["seconds/update"] = time.monotonic() - started
        return metrics

    def state(self) -> dict[str, Any]:
        """Return what an exact resume needs besides the adapter."""
        return {"optimizer": self._optimizer.state_dict(), "num_steps_taken": self.num_steps_taken}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self.num_steps_taken = int(state["num_steps_taken"])

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Return ([N] log-probabilities of the policy tokens, [N] entropies)."""
        usual = str(self._base.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
        self._base.set_attn_implementation(SHARED_PROMPT_ATTENTION)
        try:
            decoder = cast(nn.Module, self._base.get_decoder())
            decoded = decoder(
                input_ids=batch.token_ids_RS,
                position_ids=batch.positions_RS,
                use_cache=False,
                layout=batch.layout,
                layout_mask=batch.layout.mask(),
            )
        finally:
            # Others use the model too (warm start), with masks that this attention does not read.
            self._base.set_attn_implementation(usual)
        hidden_RSH = cast(Tensor, decoded.last_hidden_state)
        hidden_NH = hidden_RSH[batch.row_N, batch.source_N]
        weight_VH = cast(nn.Linear, self._base.get_output_embeddings()).weight
        return head_logprobs(hidden_NH, weight_VH, batch.target_N, temperature=self._temperature)

    def _weigh(self, groups: Sequence[ScoredGroup]) -> list[list[Item]]:
        """Attach advantages; drop rollouts that cannot move the adapter; one list per prompt."""
        if self._settings.mixed_groups_only:
            groups = [group for group in groups if group.is_mixed]
        rewards = [[reward.total for reward in group.rewards] for group in groups]
        needs_all = self._settings.kl_coefficient > 0
        kept: list[list[Item]] = []
        for group, advantages in zip(groups, self._advantage(rewards), strict=True):
            items = [
                Item(rollout=rollout, advantages=(advantage,) * len(rollout.token_ids))
                for rollout, advantage, verdict in zip(group.group.rollouts, advantages, group.verdicts, strict=True)
                if (advantage != 0.0 or needs_all) and verdict.correct is not None and rollout.num_policy_tokens
            ]
            if items:
                kept.append(items)
        return kept

    def _step(
        self, batches: Sequence[Microbatch], old: list[Tensor] | None, policy_version: int
    ) -> tuple[list[Tensor], dict[str, float]]:
        num_tokens = sum(len(batch.target_N) for batch in batches)
        num_rollouts = sum(len(batch.items) for batch in batches)
        sums: dict[str, float] = {}
        used: list[Tensor] = []
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(batches):
            logprobs_N, entropy_N = self.logprobs(batch)
            behaviour_N, is_fresh_N = self._behaviour(batch, policy_version)
            old_N = old[index] if old else torch.where(is_fresh_N, logprobs_N.detach(), behaviour_N)
            used.append(old_N)
            inputs = LossInputs(
                logprobs_BT=batch.scatter(logprobs_N),
                old_logprobs_BT=batch.scatter(old_N),
                advantages_BT=self._token_advantages(batch),
                loss_mask_BT=batch.scatter(torch.ones_like(logprobs_N).detach()).bool(),
                reference_logprobs_BT=self._reference(batch),
                num_loss_tokens=num_tokens,
                num_rollouts=num_rollouts,
            )
            loss, metrics = self._loss(inputs, self._loss_settings)
            loss.backward()
            drift_N = (logprobs_N.detach() - behaviour_N).abs() * is_fresh_N
            metrics |= {
                "value": loss.detach(),
                "entropy": entropy_N.sum() / num_tokens,
                "drift": drift_N.sum() / num_tokens,
            }
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        norm = self._apply_gradient()
        report = {f"loss/{name}": value for name, value in sums.items()}
        report |= {"loss/grad_norm": norm, "loss/skipped": float(not math.isfinite(norm)), "loss/tokens": num_tokens}
        return used, report

    def _apply_gradient(self) -> float:
        """Clip and step; return the norm before clipping. A non-finite gradient is not applied."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm))
        if math.isfinite(norm):
            warm = min(1.0, (self.num_steps_taken + 1) / (self._settings.warmup_steps + 1))
            for group in self._optimizer.param_groups:
                group["lr"] = self._settings.learning_rate * warm
            self._optimizer.step()
            self.num_steps_taken += 1
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _behaviour(self, batch: Microbatch, policy_version: int) -> tuple[Tensor, Tensor]:
        """Return ([N] engine logprobs, [N] bool: sampled by the policy as it is now)."""
        logprobs, fresh = [], []
        for item in batch.items:
            rollout = item.rollout
            facts = zip(rollout.loss_mask, rollout.behaviour_logprobs, rollout.policy_versions, strict=True)
            for is_policy, logprob, version in facts:
                if is_policy:
                    logprobs.append(logprob)
                    fresh.append(version == policy_version)
        device = batch.target_N.device
        return torch.tensor(logprobs, dtype=torch.float32, device=device), torch.tensor(fresh, device=device)

    def _token_advantages(self, batch: Microbatch) -> Tensor:
        """Return [B, T], 0 where the policy did not write."""
        values = [
            advantage
            for item in batch.items
            for is_policy, advantage in zip(item.rollout.loss_mask, item.advantages, strict=True)
            if is_policy
        ]
        return batch.scatter(torch.tensor(values, dtype=torch.float32, device=batch.target_N.device))

    def _reference(self, batch: Microbatch) -> Tensor | None:
        """Return [B, T] logprobs under the base, where the KL term asks for them."""
        if self._settings.kl_coefficient == 0:
            return None
        with torch.no_grad(), self.model.disable_adapter():
            return batch.scatter(self.logprobs(batch)[0])
