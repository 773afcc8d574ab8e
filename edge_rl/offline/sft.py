"""Supervised fine-tuning of an adapter on recorded traces, through TRL's SFTTrainer.

TRL 1.15 computes the loss in a Triton kernel, which a CPU does not have (`_ChunkedLogProbFunction` is None there), so
`compute_loss` is overridden, as TRL advises for a loss of one's own. Loop, batches and accumulation stay the trainer's.

Knows token ids and masks. Knows no text, no chat template, no sample and no file format: examples arrive tokenised, so
they are exactly what the rollout will see. Writes no checkpoint, sends nothing anywhere, and leaves the model as it was
apart from its adapter weights.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from edge_rl.config import SupervisedConfig
from edge_rl.errors import DataError
from edge_rl.offline.around_trl import (
    MICROBATCH_TOKENS,
    OnStep,
    Recorder,
    adapter_only,
    make_optimizers,
    pad_id,
    quiet,
    trainer_arguments,
)

IGNORED = -100
"""Label of a token without a loss, as torch and transformers define it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftExample:
    """One tokenised trace.

    Example: prompt (1, 2), completion (3, 4, 5) with mask (True, False, True): 3 and 5 are learnt.
    """

    prompt_ids: tuple[int, ...]
    """[P] chat template applied, generation prompt included; never in the loss."""
    completion_ids: tuple[int, ...]
    """[T] policy, hint and tool tokens in order, the end-of-turn token included."""
    completion_mask: tuple[bool, ...]
    """[T] True where the token is learnt; False on what tools returned."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise DataError("a supervised example needs a prompt; its prompt_ids are empty")
        if len(self.completion_mask) != len(self.completion_ids):
            raise DataError(
                f"a supervised example has {len(self.completion_ids)} completion tokens and a mask of "
                f"{len(self.completion_mask)}; they must be equal"
            )
        if not any(self.completion_mask):
            raise DataError(
                f"a supervised example of {len(self.completion_ids)} completion tokens has none to learn; mark the "
                "tokens that the policy should write"
            )


class SupervisedMetrics(TypedDict):
    """What a supervised stage did."""

    num_steps: int
    """Optimizer steps taken."""
    loss_curve: list[float]
    """[num_steps] mean cross-entropy in nats per learnt token, of each step before its update."""
    learning_rates: list[float]
    """[num_steps] learning rate of each step."""
    num_learnt_tokens: int
    """Tokens in the loss, all epochs together."""
    num_tokens: int
    """Tokens read, padding left out, all epochs together."""
    seconds: float


def fine_tune(  # noqa: PLR0913  (a door wires it by keyword)
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[SftExample],
    config: SupervisedConfig,
    *,
    seed: int,
    output_dir: Path,
    on_step: OnStep | None = None,
) -> SupervisedMetrics:
    """Train the adapter of `model` in place on the masked cross-entropy of `examples`; return what was done.

    The loss of a step is the mean over all its learnt tokens, however it is split into forward passes. The last batch
    of an epoch may be smaller; no example is dropped or truncated. The same model, examples, config, seed and number
    of threads give the same adapter.

    Raises: DataError without examples; ModelError if the model has nothing to train; ConfigError if the loss diverges.
    """
    if not examples:
        raise DataError("fine-tuning needs traces and got none; add samples with a trace, or set warm_start.kind=none")
    num_steps = config.epochs * math.ceil(len(examples) / config.batch_size)
    optimizers = make_optimizers(model, config, num_steps)
    recorder = Recorder(num_steps, config.learning_rate, on_step)
    microbatch = microbatch_size(examples, config.batch_size)
    started = time.perf_counter()
    with adapter_only(model), quiet():
        trainer = _TraceTrainer(
            model=model,
            args=SFTConfig(
                **trainer_arguments(model, config, microbatch=microbatch, seed=seed, output_dir=output_dir),
                packing=False,
                # The rows already hold input_ids and labels: nothing is tokenised, truncated or given a second end of turn.
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=to_dataset(examples),
            processing_class=tokenizer,
            data_collator=DataCollatorForLanguageModeling(pad_token_id=pad_id(tokenizer)),
            callbacks=[recorder],
            optimizers=optimizers,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return SupervisedMetrics(
        num_steps=len(recorder.losses),
        loss_curve=recorder.losses,
        learning_rates=recorder.learning_rates,
        num_learnt_tokens=config.epochs * sum(sum(example.completion_mask) for example in examples),
        num_tokens=config.epochs * sum(_length(example) for example in examples),
        seconds=time.perf_counter() - started,
    )


def to_dataset(examples: Sequence[SftExample]) -> Dataset:
    """Return the columns that SFTTrainer takes as they are: `input_ids` and `labels`, -100 where nothing is learnt."""
    return Dataset.from_dict(
        {
            "input_ids": [[*example.prompt_ids, *example.completion_ids] for example in examples],
            "labels": [
                [IGNORED] * len(example.prompt_ids)
                + [
                    token if is_learnt else IGNORED
                    for token, is_learnt in zip(example.completion_ids, example.completion_mask, strict=True)
                ]
                for example in examples
            ],
        }
    )


def microbatch_size(examples: Sequence[SftExample], batch_size: int) -> int:
    """Return the largest divisor of `batch_size` with which every forward pass fits MICROBATCH_TOKENS; at least 1."""
    longest = max(_length(example) for example in examples)
    fitting = [n for n in range(1, batch_size + 1) if batch_size % n == 0 and n * longest <= MICROBATCH_TOKENS]
    return max(fitting, default=1)


class _TraceTrainer(SFTTrainer):
    """SFTTrainer with the cross-entropy in plain torch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # So that the token count of the whole step arrives in compute_loss for every model family.
        self.model_accepts_loss_kwargs = True

    # Shapes: B traces, T tokens (padded), W positions from the first learnt token on, N learnt tokens, V vocabulary.
    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Return the cross-entropy of this microbatch, summed, over the number of learnt tokens of the whole step."""
        if return_outputs or num_items_in_batch is None:
            raise NotImplementedError("this trainer trains only")
        labels_BT = inputs["labels"]
        # Logits of position t predict token t + 1; nothing before the first learnt token needs any.
        first = int((labels_BT != IGNORED).any(dim=0).nonzero()[0])
        positions_W = torch.arange(first - 1, labels_BT.shape[1] - 1, device=labels_BT.device)
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_to_keep=positions_W,
            use_cache=False,
        )
        targets_BW = labels_BT[:, first:]
        is_learnt_BW = targets_BW != IGNORED
        logits_NV = outputs.logits[is_learnt_BW].float()
        loss = torch.nn.functional.cross_entropy(logits_NV, targets_BW[is_learnt_BW], reduction="sum")
        return loss / num_items_in_batch


def _length(example: SftExample) -> int:
    return len(example.prompt_ids) + len(example.completion_ids)
