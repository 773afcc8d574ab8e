"""Direct preference optimisation on pairs of a policy's own completions, through TRL's DPOTrainer.

The pairs come from the verifier: a right and a wrong completion of one question. Blog posts call this recipe self-aligned
policy optimisation; no paper of that name was found. The closest published one is Iterative RPO, arXiv:2404.19733: DPO with
the log-likelihood of the winner, in rounds.

TRL 1.15 computes log-probabilities in a Triton kernel, which a CPU does not have, so `compute_loss` is overridden. Loop,
batches, and the frozen copy of the adapter that is the reference stay TRL's. Knows token ids and masks; no text.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import use_adapter

from edge_rl.config import PreferenceConfig
from edge_rl.errors import DataError
from edge_rl.offline.around_trl import (
    MICROBATCH_TOKENS,
    Recorder,
    adapter_only,
    make_optimizers,
    pad_id,
    quiet,
    trainer_arguments,
)
from edge_rl.offline.sft import SupervisedMetrics
from edge_rl.types import Rollout, StopReason, Verdict, derive_seed

REFERENCE = "ref"
"""Name that DPOTrainer gives to its frozen copy of the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A right and a wrong completion of one prompt."""

    chosen: Rollout
    rejected: Rollout

    def __post_init__(self) -> None:
        if self.chosen.prompt != self.rejected.prompt:
            raise DataError(
                f"a pair needs one prompt; got those of {self.chosen.prompt.sample_id} and {self.rejected.prompt.sample_id}"
            )


def make_pairs(
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Verdict],
    *,
    per_question: int,
    max_length_ratio: float,
    seed: int,
) -> list[Pair]:
    """Return random right x random wrong completions of each question, each completion in one pair at most.

    Both ended by themselves, and neither is more than `max_length_ratio` times as long as the other: otherwise length
    would tell right from wrong, and the policy would learn length. Questions without both kinds give no pair.
    """
    questions: dict[str, tuple[list[Rollout], list[Rollout]]] = {}
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        if rollout.stop_reason is StopReason.STOP and verdict.correct is not None:
            sides = questions.setdefault(rollout.prompt.sample_id, ([], []))
            sides[0 if verdict.correct else 1].append(rollout)
    pairs: list[Pair] = []
    for name, (right, wrong) in questions.items():
        candidates = [*product(right, wrong)]
        Random(derive_seed(seed, "pairs", name)).shuffle(candidates)
        used: set[int] = set()
        found = 0
        for chosen, rejected in candidates:
            is_free = not {id(chosen), id(rejected)} & used
            if found < per_question and is_free and length_ratio(chosen, rejected) <= max_length_ratio:
                pairs.append(Pair(chosen=chosen, rejected=rejected))
                used |= {id(chosen), id(rejected)}
                found += 1
    return pairs


def length_ratio(first: Rollout, second: Rollout) -> float:
    """Return the policy tokens of the longer completion over those of the shorter."""
    lengths = sorted((first.num_policy_tokens, second.num_policy_tokens))
    return lengths[1] / max(1, lengths[0])


# Shapes: P pairs of the microbatch, B = 2 P completions (the chosen first), T tokens (padded).
def dpo_loss(
    logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, *, beta: float, nll_weight: float, num_pairs: int
) -> Tensor:
    """Return the sum over pairs of -log sigmoid(beta (d_w - d_l)) + nll_weight * NLL(w) / L_w, over `num_pairs`.

    d is the sum over the completion's own tokens of log pi - log pi_ref, w the chosen and l the rejected one, L_w the
    tokens of the chosen. `num_pairs` counts those of the whole optimizer step, so that microbatches add up to it.
    Source: DPO, arXiv:2305.18290, eq. 7; the second term: Iterative RPO, arXiv:2404.19733, eq. 1.
    """
    gap_BT = torch.where(mask_BT, logprobs_BT - reference_BT, torch.zeros_like(logprobs_BT))
    better_P, worse_P = gap_BT.sum(dim=1).chunk(2)
    chosen_PT, mask_PT = logprobs_BT.chunk(2)[0], mask_BT.chunk(2)[0]
    nll_P = -torch.where(mask_PT, chosen_PT, torch.zeros_like(chosen_PT)).sum(dim=1) / mask_PT.sum(dim=1)
    terms_P = -torch.nn.functional.logsigmoid(beta * (better_P - worse_P)) + nll_weight * nll_P
    return terms_P.sum() / num_pairs


def prefer(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    config: PreferenceConfig,
    *,
    seed: int,
    output_dir: Path,
) -> SupervisedMetrics:
    """Train the adapter of `model` in place on pairs, against itself as it is now; return what was done.

    Raises: DataError without pairs; ConfigError if the loss diverges.
    """
    if not pairs:
        raise DataError("preference optimisation got no pairs; use questions that the model solves sometimes")
    num_steps = config.epochs * math.ceil(len(pairs) / config.batch_size)
    optimizers = make_optimizers(model, config, num_steps)
    recorder = Recorder(num_steps, config.learning_rate, None)
    microbatch = microbatch_size(pairs, config.batch_size)
    started = time.perf_counter()
    with adapter_only(model), quiet():
        try:
            trainer = _PairTrainer(
                model=model,
                args=DPOConfig(
                    **trainer_arguments(model, config, microbatch=microbatch, seed=seed, output_dir=output_dir),
                    beta=config.beta,
                    remove_unused_columns=False,
                ),
                train_dataset=to_dataset(pairs),
                processing_class=tokenizer,
                data_collator=_Collator(pad_id(tokenizer)),
                callbacks=[recorder],
                optimizers=optimizers,
                num_pairs=len(pairs),
                preference=config,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        finally:
            if REFERENCE in model.peft_config:
                model.delete_adapter(REFERENCE)
            model.set_adapter("default")
    lengths = [len(_row(side)) for pair in pairs for side in (pair.chosen, pair.rejected)]
    learnt = [side.num_policy_tokens for pair in pairs for side in (pair.chosen, pair.rejected)]
    return SupervisedMetrics(
        num_steps=len(recorder.losses),
        loss_curve=recorder.losses,
        learning_rates=recorder.learning_rates,
        num_learnt_tokens=config.epochs * sum(learnt),
        num_tokens=config.epochs * sum(lengths),
        seconds=time.perf_counter() - started,
    )


def to_dataset(pairs: Sequence[Pair]) -> Dataset:
    """Return a row per pair: token ids and masks of both completions with their prompt in front."""
    return Dataset.from_dict(
        {
            f"{name}_{column}": [values(side(pair)) for pair in pairs]
            for name, side in (("chosen", _chosen), ("rejected", _rejected))
            for column, values in (("ids", _row), ("mask", _mask))
        }
    )


def microbatch_size(pairs: Sequence[Pair], batch_size: int) -> int:
    """Return the largest divisor of `batch_size` with which every forward pass fits MICROBATCH_TOKENS; at least 1."""
    longest = max(len(_row(side)) for pair in pairs for side in (pair.chosen, pair.rejected))
    fitting = [n for n in range(1, batch_size + 1) if batch_size % n == 0 and 2 * n * longest <= MICROBATCH_TOKENS]
    return max(fitting, default=1)


class _PairTrainer(DPOTrainer):
    """DPOTrainer over token ids, with the log-probabilities in plain torch."""

    def __init__(self, *, num_pairs: int, preference: PreferenceConfig, **settings: Any) -> None:
        super().__init__(**settings)
        self._num_pairs = num_pairs
        self._preference = preference
        # So that the trainer divides every microbatch by their number, whatever the model's family.
        self.model_accepts_loss_kwargs = False

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        """Return the rows as they are: they hold the very tokens that were sampled."""
        return dataset

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of this microbatch."""
        if return_outputs:
            raise NotImplementedError("this trainer trains only")
        policy = cast(PeftModel, self.accelerator.unwrap_model(cast(Any, self.model)))
        # The reference first: switching adapters in between would touch the graph of the policy.
        with torch.no_grad(), use_adapter(policy, REFERENCE):
            reference_BT = completion_logprobs(model, inputs)
        logprobs_BT = completion_logprobs(model, inputs)
        loss = dpo_loss(
            logprobs_BT,
            reference_BT,
            inputs["mask"][:, 1:],
            beta=self._preference.beta,
            nll_weight=self._preference.nll_weight,
            num_pairs=self._pairs_of_step(),
        )
        return loss * self.current_gradient_accumulation_steps  # which the trainer divides by

    def _pairs_of_step(self) -> int:
        """Return the pairs of the optimizer step under way; the last of an epoch may have fewer."""
        size = self._preference.batch_size
        per_epoch = math.ceil(self._num_pairs / size)
        is_last = (self.state.global_step + 1) % per_epoch == 0
        return (self._num_pairs - 1) % size + 1 if is_last else size


def completion_logprobs(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return [B, T - 1] log-probabilities of each token after the first; 0 where the mask is False."""
    mask_BT = inputs["mask"][:, 1:]
    first = int(mask_BT.any(dim=0).nonzero()[0])
    positions_W = torch.arange(first, mask_BT.shape[1], device=mask_BT.device)
    outputs = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        logits_to_keep=positions_W,
        use_cache=False,
    )
    is_own_BW = mask_BT[:, first:]
    logits_NV = outputs.logits[is_own_BW].float()
    targets_N = inputs["input_ids"][:, first + 1 :][is_own_BW]
    logprobs_N = logits_NV.log_softmax(dim=-1).gather(1, targets_N.unsqueeze(1)).squeeze(1)
    return logprobs_N.new_zeros(mask_BT.shape).index_put(mask_BT.nonzero(as_tuple=True), logprobs_N)


class _Collator:
    """Rows -> padded tensors, the chosen completions before the rejected."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids = [row[f"{side}_ids"] for side in ("chosen", "rejected") for row in rows]
        masks = [row[f"{side}_mask"] for side in ("chosen", "rejected") for row in rows]
        width = max(len(row) for row in ids)
        return {
            "input_ids": torch.tensor([[*row, *[self._pad_token_id] * (width - len(row))] for row in ids]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids]),
            "mask": torch.tensor([[*row, *[False] * (width - len(row))] for row in masks]),
        }


def _chosen(pair: Pair) -> Rollout:
    return pair.chosen


def _rejected(pair: Pair) -> Rollout:
    return pair.rejected


def _row(rollout: Rollout) -> list[int]:
    return [*rollout.prompt.token_ids, *rollout.token_ids]


def _mask(rollout: Rollout) -> list[bool]:
    return [*[False] * len(rollout.prompt.token_ids), *rollout.loss_mask]
