"""Load a base and its tokenizer, attach a LoRA adapter, read and write adapters, view base + adapter as plain weights.

Knows transformers and peft. Knows nothing of rollouts, losses, runs. The base is frozen and never written: what needs
merged weights gets a copy from `merged_state`.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from edge_rl.catalog import ModelEntry, check_size, resolve_model, shape_of_config
from edge_rl.config import ModelConfig
from edge_rl.errors import CheckpointError, ConfigError, ModelError, require
from edge_rl.weights.embedded import embedded_folder

PROVENANCE_FILE = "base.json"
"""Beside an adapter: which base it belongs to."""

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PLAIN = (
    "{% for message in messages %}{{ '### ' + message['role'] + '\n' + message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)


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


def load_base(model: ModelConfig, device: torch.device | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the frozen base in eval mode on the device, and its tokenizer.

    Raises: ConfigError for an unknown name, a model over 3B or nf4 without a GPU; ModelError where weights cannot be had.
    """
    device = torch.device(device)
    entry = resolve_model(model.name, allow_large=model.allow_large)
    folder = _location(entry)
    dtype = choose_dtype(model.dtype, device)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
    if model.quantisation == "nf4":
        options |= {"quantization_config": _nf4(device, dtype), "device_map": {"": device}}
    try:
        config = AutoConfig.from_pretrained(folder)
        shape = shape_of_config(config.to_dict())
        if entry.parameters is None and shape is not None:
            check_size(shape.matrix_parameters, model.name, allow_large=model.allow_large)
        base = AutoModelForCausalLM.from_pretrained(folder, config=config, **options)
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{model.name} does not fit into the memory of {device}: {error}") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _cannot_load(entry, error) from error
    if model.quantisation == "none":
        base = base.to(device)
    base.requires_grad_(False)
    base.eval()
    # adapters and exports name the public model, not a cache folder of this machine
    base.name_or_path = base.config._name_or_path = entry.location
    return base, _tokenizer(entry, folder)


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


def attach_adapter(model: PreTrainedModel, config: ModelConfig, seed: int) -> PeftModel:
    """Return the base with a fresh LoRA adapter on every linear layer of its blocks; the output head is left alone.

    Adapter weights are float32, everything else is frozen. B starts at zero, so the output equals the base's.
    Source: LoRA, arXiv:2106.09685. Raises: ModelError where a linear layer of a block got no adapter.
    """
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=cast(int, config.alpha),
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        tuned = cast(PeftModel, get_peft_model(model, lora))
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    _check_coverage(tuned)
    return tuned


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter in peft's format with the name and checksum of its base; the folder appears whole or not at all.

    Raises: CheckpointError where it cannot be written.
    """
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        state = get_peft_model_state_dict(model, save_embedding_layers=False)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(state, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
        config = copy(model.peft_config["default"])
        config.inference_mode = True
        config.save_pretrained(str(scratch))
        (scratch / PROVENANCE_FILE).write_text(json.dumps(base_facts(model), indent=2) + "\n", encoding="utf-8")
        replace_folder(scratch, folder)
    except OSError as error:
        raise CheckpointError(f"cannot write adapter {folder}: {error}; free space and run again") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def load_adapter_weights(model: PeftModel, folder: Path) -> None:
    """Copy the weights of a saved adapter into the attached one.

    Raises: CheckpointError where the file is unreadable or belongs to another base, rank or set of layers.
    """
    path = folder / "adapter_model.safetensors"
    try:
        state = load_file(path)
        saved: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read adapter {folder}: {error}") from error
    except Exception as error:  # safetensors raises its own class, a plain Exception
        raise CheckpointError(f"cannot read {path}: {error}; the file is damaged, use an older checkpoint") from error
    current = cast(LoraConfig, model.peft_config["default"])
    for key, have in (("r", current.r), ("lora_alpha", current.lora_alpha)):
        if saved.get(key) != have:
            raise CheckpointError(f"adapter {folder} has {key}={saved.get(key)}, the model has {key}={have}")
    check_base(model, folder)
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    wrong = set(expected) ^ set(state) or {key for key in expected if expected[key].shape != state[key].shape}
    if wrong:
        raise CheckpointError(
            f"adapter {folder} fits {len(set(expected) & set(state))} of {len(expected)} tensors of the model; "
            f"first that differs: {min(wrong)}; it was trained on another base"
        )
    set_peft_model_state_dict(model, state)


def check_base(model: nn.Module, adapter: Path) -> None:
    """Compare the base with the one that the adapter was trained on; an adapter without that record is accepted.

    Raises: CheckpointError for another vocabulary, another shape, or other weights of the same stored precision.
    """
    path = adapter / PROVENANCE_FILE
    if not path.is_file():
        return
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = base_facts(model)
    keys = ["vocab"] + (["checksum"] if recorded.get("dtype") == found["dtype"] else [])
    for key in keys:
        if recorded.get(key) != found[key]:
            raise CheckpointError(
                f"adapter {adapter} was trained on {recorded.get('base')} with {key} {recorded.get(key)}, but the loaded "
                f"base {found['base']} has {found[key]}; load the base it was trained on"
            )


def base_facts(model: nn.Module) -> dict[str, Any]:
    """Return name, vocabulary, dtype and checksum of the base, for the record beside an adapter."""
    plain = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
    embeddings = cast(nn.Embedding, plain.get_input_embeddings())
    return {
        "base": plain.config._name_or_path,
        "vocab": embeddings.num_embeddings,
        "dtype": str(embeddings.weight.dtype).removeprefix("torch."),
        "checksum": base_checksum(model),
    }


@torch.no_grad()
def merged_state(model: PeftModel, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return plain weights by their names in the base: W + scale * B A where adapted, else the base's own tensor.

    Computed in float32 from the pristine base, then cast to the dtype of the base, so nothing drifts over many steps.
    Given `out` of an earlier call, adapted weights are written into its tensors instead of into new memory.
    """
    merged: dict[str, Tensor] = {}
    layers = {name: module for name, module in model.get_base_model().named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in _base_parameters(model):
        layer = layers.get(name.removesuffix(".weight"))
        if layer is None:
            merged[name] = parameter
            continue
        weight = _plain_weight(parameter)
        target = out[name] if out is not None else torch.empty_like(weight)
        up, down = layer.lora_B["default"].weight.float(), layer.lora_A["default"].weight.float()
        if weight.dtype == torch.float32:
            torch.addmm(weight, up, down, alpha=layer.scaling["default"], out=target)
        else:
            target.copy_(torch.addmm(weight.float(), up, down, alpha=layer.scaling["default"]))
        merged[name] = target
    return merged


@torch.no_grad()
def base_checksum(model: nn.Module) -> str:
    """Return a fingerprint of the frozen weights that changes if any single one changes. Exact integers, no rounding.

    bfloat16 weights and the same weights widened to float32 have the same fingerprint.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name, parameter in _base_parameters(model):
        values = parameter.detach()
        # the bits of a bfloat16, shifted left by 16, are those of its float32
        width, shift = (torch.int16, 16) if values.element_size() == 2 else (torch.int32, 0)
        if values.element_size() not in (2, 4):
            width, shift = torch.uint8, 0
        bits = values.contiguous().view(width)
        rows = bits.reshape(bits.shape[0], -1).sum(dim=1, dtype=torch.int64)
        place = torch.arange(1, len(rows) + 1, device=rows.device)
        # integer sums wrap at 64 bits, so the shifted ones must too
        sums = [(int(value) << shift) % 2**64 for value in (rows.sum(), (rows * place).sum())]
        digest.update(repr((name, tuple(values.shape), sums)).encode())
    return digest.hexdigest()


def replace_folder(source: Path, target: Path) -> None:
    """Rename `source` to `target`; what was there goes away only after the new one is in place."""
    source.chmod(0o755)
    if not target.exists():
        source.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / "content")
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _location(entry: ModelEntry) -> str:
    return str(embedded_folder()) if entry.source == "embedded" else entry.location


def _cannot_load(entry: ModelEntry, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    advice = (
        "it needs network access to huggingface.co (and `hf auth login` for gated models), or a local folder in --model; "
        "smollm2-135m works without a hub"
        if entry.source == "hub"
        else "the folder must hold config.json, safetensors and tokenizer files as save_pretrained writes them"
    )
    return ModelError(f"cannot load {entry.name} from {entry.location}: {reason}; {advice}")


def _nf4(device: torch.device, dtype: torch.dtype) -> Any:
    if device.type != "cuda":
        raise ConfigError(f'model.quantisation is "nf4", which needs a CUDA GPU; on {device.type} use "none"')
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
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(entry, error) from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {entry.name} has no end-of-sequence token; set eos_token in its folder")
    if tokenizer.pad_token_id is None:
        # harmless here: masks derive from authors and lengths, never from the pad id
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.chat_template is None:
        # set on the tokenizer, so that training, evaluation and export all use and carry the same format
        tokenizer.chat_template = _CHATML if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.get_vocab()) else _PLAIN
    return tokenizer


def _check_coverage(model: PeftModel) -> None:
    base = cast(PreTrainedModel, model.get_base_model())
    head = base.get_output_embeddings()
    inside_adapters = ("lora_", "base_layer")
    bare: list[str] = []
    for name, module in base.named_modules():
        if isinstance(module, nn.Linear) and module is not head and not any(part in name for part in inside_adapters):
            bare.append(name)
    if bare:
        raise ModelError(
            f"{len(bare)} linear layers have no adapter, the first is {bare[0]}; this family is unsupported"
        )
    if isinstance(head, LoraLayer) or isinstance(base.get_input_embeddings(), LoraLayer):
        raise ModelError("the adapter reached the output head or the embeddings; this family is unsupported")


def _base_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The base's parameters under their plain names, adapters left out; tied ones once."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    for name, parameter in cast(nn.Module, base).named_parameters():
        if "lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def _plain_weight(parameter: nn.Parameter) -> Tensor:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter
    from bitsandbytes.functional import dequantize_4bit

    return cast(Tensor, dequantize_4bit(parameter.data, state))
