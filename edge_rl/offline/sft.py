"""Supervised fine-tuning of an adapter on recorded traces, through TRL's SFTTrainer.

TRL 1.15 computes the loss in a Triton kernel, which a CPU does not have (`_ChunkedLogProbFunction` is None there), so
`compute_loss` is overridden, as TRL advises for a loss of one's own. Loop, batches and accumulation stay the trainer's.

Knows token ids and masks. Knows no text, no chat template, no sample and no file format: examples arrive tokenised, so
they are exactly what the rollout will see. Writes no checkpoint, sends nothing anywhere, and leaves the model as it was
apart from its adapter weights.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from datasets import Dataset
from huggingface_hub import constants as hub_constants
from peft import PeftModel
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from edge_rl.config import SupervisedConfig
from edge_rl.errors import ConfigError, DataError, ModelError

IGNORED = -100
"""Label of a token without a loss, as torch and transformers define it."""

MICROBATCH_TOKENS = 2048
"""Tokens, padding included, in one forward pass; a larger batch is accumulated."""

WARMUP_SHARE = 0.1
"""Share of the steps in which the learning rate rises."""

MAX_GRAD_NORM = 1.0

OnStep = Callable[[int, int, float], None]
"""Takes the steps done, the steps in all, and the loss of the step."""


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
        raise DataError("supervised fine-tuning got no examples; add samples with a trace, or set warm_start.kind=none")
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError("the model has no trainable weights; give it a LoRA adapter first")

    num_steps = config.epochs * math.ceil(len(examples) / config.batch_size)
    optimizer = torch.optim.AdamW(trainable, lr=config.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, num_steps))
    recorder = _Recorder(num_steps, config.learning_rate, on_step)
    microbatch = microbatch_size(examples, config.batch_size)
    started = time.perf_counter()
    with _adapter_only(model), _quiet():
        trainer = _TraceTrainer(
            model=model,
            args=_arguments(model, config, microbatch=microbatch, seed=seed, output_dir=output_dir),
            train_dataset=to_dataset(examples),
            processing_class=tokenizer,
            data_collator=DataCollatorForLanguageModeling(pad_token_id=_pad_id(tokenizer)),
            callbacks=[recorder],
            optimizers=(optimizer, schedule),
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


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate at `step`, from 0: a linear rise, then half a cosine towards 0.

    The first step is not wasted on a rate of 0: it has 1 / (number of rising steps) of the peak.
    """
    num_rising = max(1, round(WARMUP_SHARE * num_steps))
    if step < num_rising:
        return (step + 1) / num_rising
    return 0.5 * (1.0 + math.cos(math.pi * (step - num_rising) / max(1, num_steps - num_rising)))


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


class _Recorder(TrainerCallback):
    """Keeps the curves, and ends a run whose loss is no number."""

    def __init__(self, num_steps: int, peak: float, on_step: OnStep | None) -> None:
        self.losses: list[float] = []
        self.learning_rates: list[float] = []
        self._num_steps = num_steps
        self._peak = peak
        self._on_step = on_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take the loss of a step; the summary at the end has no `loss`."""
        if logs is None or "loss" not in logs:
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise ConfigError(
                f"supervised fine-tuning: the loss is {loss} at step {state.global_step} of {self._num_steps} with a "
                f"learning_rate of {self._peak:g}; lower it"
            )
        self.losses.append(loss)
        self.learning_rates.append(self._peak * learning_rate_factor(len(self.learning_rates), self._num_steps))
        if self._on_step is not None:
            self._on_step(state.global_step, self._num_steps, loss)


def _arguments(
    model: PeftModel, config: SupervisedConfig, *, microbatch: int, seed: int, output_dir: Path
) -> SFTConfig:
    device = next(model.parameters()).device
    dtypes = {parameter.dtype for parameter in model.parameters() if not parameter.requires_grad}
    return SFTConfig(
        output_dir=str(output_dir),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=config.batch_size // microbatch,
        learning_rate=config.learning_rate,
        max_grad_norm=MAX_GRAD_NORM,
        seed=seed,
        data_seed=seed,
        use_cpu=device.type == "cpu",
        # No autocast: the base computes in its own dtype and the adapter in float32. Only float16 needs a loss scale,
        # because its gradients underflow.
        bf16=False,
        fp16=device.type == "cuda" and torch.float16 in dtypes,
        gradient_checkpointing=False,
        max_length=None,
        packing=False,
        # The rows already hold input_ids and labels: nothing is tokenised, truncated or given a second end of turn.
        dataset_kwargs={"skip_prepare_dataset": True},
        dataloader_drop_last=False,
        dataloader_pin_memory=device.type == "cuda",
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        push_to_hub=False,
        disable_tqdm=True,
    )


def _length(example: SftExample) -> int:
    return len(example.prompt_ids) + len(example.completion_ids)


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    # Padding is masked in attention and loss, so any id serves.
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(token_id, int):
            return token_id
    return 0


@contextmanager
def _adapter_only(model: PeftModel) -> Generator[None]:
    """Undo on leaving what the trainer does to a model besides training its adapter.

    TRL puts a fused head into `forward`, accelerate may wrap it, and transformers copies special tokens of the
    tokenizer into the configs.
    """
    modules: list[torch.nn.Module] = [model, model.get_base_model()]
    forwards = [module.__dict__.get("forward") for module in modules]
    configs = [config for config in (model.config, getattr(model, "generation_config", None)) if config is not None]
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    tokens = [{name: getattr(config, name) for name in names if hasattr(config, name)} for config in configs]
    was_training = model.training
    try:
        yield
    finally:
        for module, forward in zip(modules, forwards, strict=True):
            module.__dict__.pop("forward", None)
            module.__dict__.pop("_original_forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward
        for config, values in zip(configs, tokens, strict=True):
            for name, value in values.items():
                setattr(config, name, value)
        model.zero_grad(set_to_none=True)
        model.train(was_training)


@contextmanager
def _quiet() -> Generator[None]:
    """Keep the libraries from talking: to the console, and to their makers."""
    verbosity = transformers_logging.get_verbosity()
    trl_logger = logging.getLogger("trl")
    trl_level = trl_logger.level
    telemetry = hub_constants.HF_HUB_DISABLE_TELEMETRY
    transformers_logging.set_verbosity_error()
    trl_logger.setLevel(logging.ERROR)
    hub_constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        hub_constants.HF_HUB_DISABLE_TELEMETRY = telemetry
        trl_logger.setLevel(trl_level)
        transformers_logging.set_verbosity(verbosity)
