"""What the supervised stages need around TRL's trainers: their arguments, a record of the loss, and a model left as it was.

Knows transformers and TRL. Writes no checkpoint and sends nothing anywhere.
"""

import logging
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants as hub_constants
from peft import PeftModel
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging as transformers_logging

from edge_rl.config import SupervisedConfig
from edge_rl.errors import ConfigError, ModelError

MICROBATCH_TOKENS = 2048
"""Tokens, padding included, in one forward pass; a larger batch is accumulated."""

WARMUP_SHARE = 0.1
"""Share of the steps in which the learning rate rises."""

MAX_GRAD_NORM = 1.0

OnStep = Callable[[int, int, float], None]
"""Takes the steps done, the steps in all, and the loss of the step."""


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Return the share of the peak learning rate at `step`, from 0: a linear rise, then half a cosine towards 0.

    The first step is not wasted on a rate of 0: it has 1 / (number of rising steps) of the peak.
    """
    num_rising = max(1, round(WARMUP_SHARE * num_steps))
    if step < num_rising:
        return (step + 1) / num_rising
    return 0.5 * (1.0 + math.cos(math.pi * (step - num_rising) / max(1, num_steps - num_rising)))


def make_optimizers(
    model: PeftModel, config: SupervisedConfig, num_steps: int
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return AdamW over the adapter, with the schedule of `learning_rate_factor`.

    Raises: ModelError if the model has nothing to train.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError("the model has no trainable weights; give it a LoRA adapter first")
    optimizer = torch.optim.AdamW(trainable, lr=config.learning_rate, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, num_steps))


class Recorder(TrainerCallback):
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


def trainer_arguments(
    model: PeftModel, config: SupervisedConfig, *, microbatch: int, seed: int, output_dir: Path
) -> dict[str, Any]:
    """Return what TrainingArguments of either trainer get: no checkpoint, no report, no autocast, no dropped example."""
    device = next(model.parameters()).device
    dtypes = {parameter.dtype for parameter in model.parameters() if not parameter.requires_grad}
    return {
        "output_dir": str(output_dir),
        "num_train_epochs": config.epochs,
        "per_device_train_batch_size": microbatch,
        "gradient_accumulation_steps": config.batch_size // microbatch,
        "learning_rate": config.learning_rate,
        "max_grad_norm": MAX_GRAD_NORM,
        "seed": seed,
        "data_seed": seed,
        "use_cpu": device.type == "cpu",
        # No autocast: the base computes in its own dtype and the adapter in float32. Only float16 needs a loss scale,
        # because its gradients underflow.
        "bf16": False,
        "fp16": device.type == "cuda" and torch.float16 in dtypes,
        "gradient_checkpointing": False,
        "max_length": None,
        "dataloader_drop_last": False,
        "dataloader_pin_memory": device.type == "cuda",
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "push_to_hub": False,
        "disable_tqdm": True,
    }


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return a token id to pad with. Padding is masked in attention and loss, so any serves."""
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(token_id, int):
            return token_id
    return 0


@contextmanager
def adapter_only(model: PeftModel) -> Generator[None]:
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
def quiet() -> Generator[None]:
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
