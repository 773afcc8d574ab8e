"""Load a frozen base in the precision that the device is quick in, and its tokenizer.

Knows transformers and where weights come from. Knows nothing of adapters, rollouts, losses, runs.
"""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from edge_rl.catalog import ModelEntry, check_size, resolve_model, shape_of_config
from edge_rl.config import ModelConfig
from edge_rl.errors import ConfigError, ModelError, require
from edge_rl.weights.embedded import embedded_folder

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


def choose_dtype(requested: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the base: what is asked for, or for "auto" the one that this hardware is quick in.

    Auto gives bfloat16 where the hardware computes in it, else float16 on a GPU and float32 on a CPU.
    """
    if requested in _DTYPES:
        return _DTYPES[requested]
    if device.type == "cuda":
        # without the flag it also says yes to slow emulation (T4)
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    if device.type == "cpu":
        # emulated bfloat16 is about five times slower than float32 on a CPU with AVX2 only
        capabilities = torch.cpu.get_capabilities()
        return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32
    return torch.float16


def check_quantisation(model: ModelConfig, device: torch.device) -> None:
    """Refuse 4 bit where it cannot be computed.

    Raises: ConfigError for nf4 without a GPU.
    """
    if model.quantisation == "nf4" and device.type != "cuda":
        raise ConfigError(f'model.quantisation is "nf4", which needs a CUDA GPU; on {device.type} use "none"')


def load_base(model: ModelConfig, device: torch.device | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the frozen base in eval mode on the device, and its tokenizer.

    Raises: ConfigError for an unknown name, a model over 3B, nf4 without a GPU; ModelError where weights cannot be had.
    """
    device = torch.device(device)
    entry = resolve_model(model.name, allow_large=model.allow_large)
    check_quantisation(model, device)
    folder = _location(entry)
    dtype = choose_dtype(model.dtype, device)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
    if model.quantisation == "nf4":
        options |= {"quantization_config": _nf4(dtype), "device_map": {"": device}}
    try:
        if entry.parameters is None:
            # before the weights: a config is a small file
            config = cast(Any, AutoConfig.from_pretrained(folder))
            shape = shape_of_config(config.to_dict())
            if shape is not None:
                check_size(shape.matrix_parameters, model.name, allow_large=model.allow_large)
        with quiet() if entry.source != "hub" else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{model.name} does not fit into the memory of {device}: {error}") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _cannot_load(entry, error) from error
    base: PreTrainedModel = loaded.to(device) if model.quantisation == "none" else loaded
    base.requires_grad_(False)
    base.eval()
    # adapters and exports name the public model, not a cache folder of this machine
    base.name_or_path = base.config.name_or_path = entry.location
    return base, _tokenizer(entry, folder)


@contextmanager
def quiet() -> Generator[None]:
    """Hide the progress bars of transformers: reading a local file takes a second, and doors draw their own."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model without loading its weights.

    Raises: ConfigError for an unknown name; ModelError where it cannot be had.
    """
    entry = resolve_model(model.name, allow_large=model.allow_large)
    return _tokenizer(entry, _location(entry))


def turn_end_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end the policy's turn: the end-of-sequence token and the turn terminators of its family."""
    vocabulary = tokenizer.get_vocab()
    ids = {vocabulary[token] for token in _TURN_ENDS if token in vocabulary}
    eos = cast(int | None, tokenizer.eos_token_id)
    return frozenset(ids | ({eos} if eos is not None else set()))


def _location(entry: ModelEntry) -> str:
    return str(embedded_folder()) if entry.source == "embedded" else entry.location


def _cannot_load(entry: ModelEntry, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    advice = (
        "it needs network access to huggingface.co (and `hf auth login` for gated models); or give a local folder "
        "in --model; smollm2-135m works without a hub"
        if entry.source == "hub"
        else "the folder must hold config.json, safetensors and tokenizer files as save_pretrained writes them"
    )
    return ModelError(f"cannot load {entry.name} from {entry.location}: {reason}; {advice}")


def _nf4(dtype: torch.dtype) -> Any:
    require("bitsandbytes", "gpu")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _tokenizer(entry: ModelEntry, folder: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(folder))
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(entry, error) from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {entry.name} has no end-of-sequence token; set eos_token in its folder")
    if tokenizer.pad_token_id is None:
        # harmless here: masks derive from authors and lengths, never from the pad id
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
