"""Scored groups -> one optimizer step on the adapter. Knows the model; knows no text, engine or file of a run."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from edge_rl.config import LearningConfig
from edge_rl.learning.attention import SHARED_PROMPT_ATTENTION
from edge_rl.learning.collate import Item, Microbatch, collate, make_microbatches, make_rows
from edge_rl.learning.correction import CorrectionSettings, correction_weights, drift_metrics
from edge_rl.learning.credit import get_credit
from edge_rl.learning.logprobs import head_logprobs
from edge_rl.learning.losses import LossInputs, LossSettings, get_loss
from edge_rl.types import Author, Group, Rollout, ScoredGroup, Segment, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What the policy that sampled gave to the policy tokens of one microbatch; the same in every epoch."""

    old_N: Tensor
    """Log-probabilities that the ratio divides by."""
    gap_N: Tensor
    """Trainer minus engine."""
    weight_N: Tensor
    """For that gap; 1 without a correction."""


class Learner:
    """Trains the adapter of a PEFT model; the base stays as it is."""

    def __init__(self, model: PeftModel, settings: LearningConfig, *, temperature: float, pad_token_id: int) -> None:
        """`temperature`: that of the rollouts, since log-probabilities depend on it."""
        self.model = model
        self._settings = settings
        self._temperature = temperature
        self._pad_token_id = pad_token_id
        self._loss = get_loss(settings.loss)
        self._credit = get_credit(settings)
        self._loss_settings = LossSettings(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            kl_coefficient=settings.kl_coefficient,
            max_tokens=settings.max_tokens_normaliser,
            positive_temperature=settings.sapo_temperature_positive,
            negative_temperature=settings.sapo_temperature_negative,
        )
        self._correction = CorrectionSettings(cap=settings.correction_cap, sequence_limit=settings.sequence_drift_limit)
        self._base = cast(PreTrainedModel, model.get_base_model())
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = self._new_optimizer()
        self.num_steps_taken = 0
        self._rate_factor = 1.0

    def update(self, groups: Sequence[ScoredGroup], *, policy_version: int) -> dict[str, float]:
        """Take one step per epoch on these groups; return the metrics of the last.

        A rollout whose advantage is exactly zero adds nothing to the gradient, so it is left out of the pass (unless the KL
        term needs it). If no rollout is left, no step is taken. A non-finite gradient is dropped and counted.
        """
        started = time.monotonic()
        items = self.weigh(groups)
        metrics: dict[str, float] = {"learning/live_rollouts": sum(len(group) for group in items)}
        if items:
            batches = self.batches(items)
            past: list[_Past] = []
            skipped = 0.0
            for _ in range(self._settings.epochs):
                step_metrics = self._step(batches, past, policy_version)
                skipped += step_metrics["loss/skipped"]
                metrics |= step_metrics
            metrics["loss/skipped"] = skipped
            metrics |= drift_metrics(torch.cat([own.gap_N for own in past]), torch.cat([own.weight_N for own in past]))
        metrics["seconds/update"] = time.monotonic() - started
        return metrics

    @torch.no_grad()
    def with_old_logprobs(self, groups: Sequence[Group], *, policy_version: int) -> list[Group]:
        """Return the groups, each segment that this policy sampled with its old logprobs, for a later step to divide by.

        Call it before the update, while the model still is the policy that sampled.
        Source: MiniCPM4, arXiv:2506.07900 (logprobs of the chunks that are carried, computed before the update).
        """
        if self._settings.old_logprobs == "engine":
            return list(groups)
        waiting = [
            [
                Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids))
                for rollout in group.rollouts
                if any(_needs_old_logprobs(segment, policy_version) for segment in rollout.segments)
            ]
            for group in groups
        ]
        known: dict[tuple[str, int], Rollout] = {}
        for batch in self.batches([items for items in waiting if items]):
            logprobs_BT = batch.scatter(self.logprobs(batch)[0])
            rows = cast(list[list[float]], logprobs_BT.tolist())
            for item, logprobs_T in zip(batch.items, rows, strict=True):
                rollout = item.rollout
                known[rollout.group_id, rollout.member] = _fill_old_logprobs(rollout, logprobs_T, policy_version)
        return [
            replace(
                group,
                rollouts=tuple(known.get((rollout.group_id, rollout.member), rollout) for rollout in group.rollouts),
            )
            for group in groups
        ]

    @torch.no_grad()
    def engine_gaps(self, rollouts: Sequence[Rollout], *, policy_version: int) -> tuple[float, float]:
        """Return the mean absolute gap in nats between the engine and (the policy, the base without its adapter).

        Over the tokens that this policy version sampled. The first says whether engine and trainer compute the same; the
        second, if it is far larger, that the engine has the adapter at all.
        Raises: ValueError if there is no such token.
        """
        items = [
            Item(rollout=rollout, advantages=(0.0,) * len(rollout.token_ids))
            for rollout in rollouts
            if policy_version in rollout.policy_versions
        ]
        gaps: list[tuple[Tensor, Tensor]] = []
        for batch in self.batches([[item] for item in items]):
            own_N = self.logprobs(batch)[0]
            with self.model.disable_adapter():
                base_N = self.logprobs(batch)[0]
            engine_N, is_fresh_N = self._engine_logprobs(batch, policy_version)
            gaps.append(((own_N - engine_N)[is_fresh_N].abs(), (base_N - engine_N)[is_fresh_N].abs()))
        if not sum(len(own_N) for own_N, _ in gaps):
            raise ValueError(f"no token of policy version {policy_version} among {len(rollouts)} rollouts")
        own, base = (torch.cat(side) for side in zip(*gaps, strict=True))
        return float(own.mean()), float(base.mean())

    def state(self) -> dict[str, Any]:
        """Return what an exact resume needs besides the adapter."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "num_steps_taken": self.num_steps_taken,
            "rate_factor": self._rate_factor,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self.num_steps_taken = int(state["num_steps_taken"])
        self._rate_factor = float(state["rate_factor"])

    def lower_learning_rate(self, factor: float) -> float:
        """Multiply the learning rate of all later steps; return the new peak."""
        self._rate_factor *= factor
        return self._settings.learning_rate * self._rate_factor

    def forget_moments(self) -> None:
        """Begin with a fresh optimizer, after the adapter was replaced: its moments belong to weights that are gone."""
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._parameters, lr=self._settings.learning_rate, weight_decay=0.0)

    def logprobs(self, batch: Microbatch, hidden_NH: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ([N] log-probabilities of the policy tokens, [N] entropies); from hidden states that are there already."""
        hidden_NH = self.hidden(batch) if hidden_NH is None else hidden_NH
        weight_VH = cast(nn.Linear, self._base.get_output_embeddings()).weight
        return head_logprobs(hidden_NH, weight_VH, batch.target_N, temperature=self._temperature)

    def hidden(self, batch: Microbatch) -> Tensor:
        """Return [N, H] hidden states that predict the policy tokens."""
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
        return hidden_RSH[batch.row_N, batch.source_N]

    def weigh(self, groups: Sequence[ScoredGroup]) -> list[list[Item]]:
        """Attach advantages; drop rollouts that cannot move the adapter; one list per prompt."""
        if self._settings.mixed_groups_only:
            groups = [group for group in groups if group.is_mixed]
        needs_all = self._settings.kl_coefficient > 0
        kept: list[list[Item]] = []
        for group, advantages in zip(groups, self._credit(groups), strict=True):
            items = [
                Item(rollout=rollout, advantages=values)
                for rollout, values, verdict in zip(group.group.rollouts, advantages, group.verdicts, strict=True)
                if (any(values) or needs_all) and verdict.correct is not None and is_trainable(rollout)
            ]
            if items:
                kept.append(items)
        return kept

    def batches(self, items: Sequence[Sequence[Item]]) -> list[Microbatch]:
        """Return microbatches of rollouts, given in one list per prompt."""
        rows = make_rows(items, max_tokens=self._settings.microbatch_tokens)
        return [
            collate(batch, pad_token_id=self._pad_token_id, device=self._base.device)
            for batch in make_microbatches(rows, max_tokens=self._settings.microbatch_tokens)
        ]

    def _step(self, batches: Sequence[Microbatch], past: list[_Past], policy_version: int) -> dict[str, float]:
        """Take one optimizer step; the first epoch fills `past`, one entry a microbatch."""
        num_tokens = sum(len(batch.target_N) for batch in batches)
        num_rollouts = sum(len(batch.items) for batch in batches)
        sums: dict[str, float] = {}
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(batches):
            hidden_NH = self.hidden(batch)
            logprobs_N, entropy_N = self.logprobs(batch, hidden_NH)
            if index == len(past):
                past.append(self._past(batch, logprobs_N.detach(), policy_version))
            own = past[index]
            inputs = LossInputs(
                logprobs_BT=batch.scatter(logprobs_N),
                old_logprobs_BT=batch.scatter(own.old_N),
                advantages_BT=self._token_advantages(batch),
                loss_mask_BT=batch.scatter(torch.ones_like(own.old_N)).bool(),
                reference_logprobs_BT=self._reference(batch),
                num_loss_tokens=num_tokens,
                num_rollouts=num_rollouts,
                correction_BT=batch.scatter(own.weight_N),
            )
            loss, metrics = self._loss(inputs, self._loss_settings)
            extra, extra_metrics = self.extra_loss(batch, hidden_NH, num_tokens)
            (loss if extra is None else loss + extra).backward()
            metrics |= extra_metrics
            metrics |= {"value": loss.detach(), "entropy": entropy_N.sum() / num_tokens}
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        norm = self._apply_gradient()
        report = {f"loss/{name}": value for name, value in sums.items()}
        return report | {
            "loss/grad_norm": norm,
            "loss/skipped": float(not math.isfinite(norm)),
            "loss/tokens": num_tokens,
        }

    def extra_loss(
        self, batch: Microbatch, hidden_NH: Tensor, num_tokens: int
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return what is minimised beside the policy loss, and its metrics; nothing here."""
        del batch, hidden_NH, num_tokens
        return None, {}

    def _apply_gradient(self) -> float:
        """Clip and step; return the norm before clipping. A non-finite gradient is not applied."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm))
        if math.isfinite(norm):
            warm = min(1.0, (self.num_steps_taken + 1) / (self._settings.warmup_steps + 1))
            for group in self._optimizer.param_groups:
                group["lr"] = self._settings.learning_rate * self._rate_factor * warm * group.get("factor", 1.0)
            self._optimizer.step()
            self.num_steps_taken += 1
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _past(self, batch: Microbatch, logprobs_N: Tensor, policy_version: int) -> _Past:
        """Return what the sampling policy gave. `logprobs_N`: by the trainer now, so they hold for what is sampled now.

        A token of an older policy for which the trainer computed nothing keeps the engine's value.
        """
        engine_N, is_fresh_N = self._engine_logprobs(batch, policy_version)
        known = [
            math.nan if old is None else old
            for item in batch.items
            for is_policy, old in zip(item.rollout.loss_mask, item.rollout.old_logprobs, strict=True)
            if is_policy
        ]
        known_N = torch.tensor(known, dtype=torch.float32, device=batch.target_N.device)
        trainer_N = torch.where(is_fresh_N, logprobs_N, torch.where(known_N.isnan(), engine_N, known_N))
        gap_N = trainer_N - engine_N
        if self._settings.old_logprobs == "engine":
            return _Past(old_N=engine_N, gap_N=gap_N, weight_N=torch.ones_like(gap_N))
        weight_N = torch.ones_like(gap_N)
        if self._settings.engine_correction:
            mask_BT = batch.scatter(weight_N).bool()
            weight_BT = correction_weights(batch.scatter(gap_N), mask_BT, self._correction)
            weight_N = weight_BT[batch.rollout_N, batch.place_N]
        return _Past(old_N=trainer_N, gap_N=gap_N, weight_N=weight_N)

    def _engine_logprobs(self, batch: Microbatch, policy_version: int) -> tuple[Tensor, Tensor]:
        """Return ([N] engine logprobs, [N] bool: sampled by this policy version)."""
        facts = [
            (logprob, version == policy_version)
            for item in batch.items
            for is_policy, logprob, version in zip(
                item.rollout.loss_mask, item.rollout.behaviour_logprobs, item.rollout.policy_versions, strict=True
            )
            if is_policy
        ]
        device = batch.target_N.device
        engine_N = torch.tensor([logprob for logprob, _ in facts], dtype=torch.float32, device=device)
        return engine_N, torch.tensor([is_fresh for _, is_fresh in facts], device=device)

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


def is_trainable(rollout: Rollout) -> bool:
    """Return whether there is something to learn from it: a garbled one counts in its group's mean, not in the loss."""
    return rollout.num_policy_tokens > 0 and rollout.stop_reason is not StopReason.GARBLED


def _needs_old_logprobs(segment: Segment, policy_version: int) -> bool:
    is_fresh = segment.author is Author.POLICY and segment.policy_version == policy_version
    return is_fresh and not segment.old_logprobs


def _fill_old_logprobs(rollout: Rollout, logprobs_T: Sequence[float], policy_version: int) -> Rollout:
    """Return the rollout with old logprobs on the segments that need them."""
    segments: list[Segment] = []
    start = 0
    for segment in rollout.segments:
        end = start + len(segment.token_ids)
        if _needs_old_logprobs(segment, policy_version):
            segment = replace(segment, old_logprobs=tuple(logprobs_T[start:end]))
        segments.append(segment)
        start = end
    return replace(rollout, segments=tuple(segments))
