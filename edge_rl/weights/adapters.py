"""LoRA adapters: attach, save, load, check against their base, and view base + adapter as plain weights.

Knows peft. Knows nothing of rollouts, losses, runs. The base is frozen and never written: what needs merged weights
gets a copy from `merged_state`.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, cast

import peft
import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edge_rl.config import ModelConfig
from edge_rl.errors import CheckpointError, ModelError, require

PROVENANCE_FILE = "base.json"
"""Beside an adapter: which base it belongs to."""
_OLD = "-old-"


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
    with _seeded(model.device, seed):
        tuned = cast(PeftModel, peft.get_peft_model(model, lora))
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    _check_coverage(tuned)
    return tuned


def reset_adapter(model: PeftModel, seed: int) -> None:
    """Give an attached adapter fresh weights: A random, B zero, so the output equals the base's again."""
    with _seeded(model.device, seed):
        for layer in adapted_layers(model).values():
            layer.reset_lora_parameters("default", init_lora_weights=True)


def save_adapter(model: PeftModel, folder: Path, *, facts: Mapping[str, Any] | None = None) -> None:
    """Write the adapter in peft's format with the name and checksum of its base; the folder appears whole or never.

    `facts` are those of the base where they are known already: the checksum reads every weight.
    Raises: CheckpointError where it cannot be written.
    """
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        state = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        safetensors_torch.save_file(state, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
        config = copy(model.peft_config["default"])
        config.inference_mode = True
        config.save_pretrained(str(scratch))
        (scratch / PROVENANCE_FILE).write_text(
            json.dumps(facts or base_facts(model), indent=2) + "\n", encoding="utf-8"
        )
        replace_folder(scratch, folder)
    except (OSError, SafetensorError) as error:  # the latter for a full disk, too
        raise CheckpointError(f"cannot write adapter {folder}: {error}; free space and run again") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def load_adapter_weights(model: PeftModel, folder: Path) -> None:
    """Copy the weights of a saved adapter into the attached one.

    Raises: CheckpointError where the file is unreadable or belongs to another base, rank or set of layers.
    """
    try:
        state = safetensors_torch.load_file(folder / "adapter_model.safetensors")
        saved: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"cannot read adapter {folder}: {error}; use an older checkpoint") from error
    current = cast(LoraConfig, model.peft_config["default"])
    for key, have in (("r", current.r), ("lora_alpha", current.lora_alpha)):
        if saved.get(key) != have:
            raise CheckpointError(f"adapter {folder} has {key}={saved.get(key)}, the model has {key}={have}")
    check_base(model, folder)
    expected = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    wrong = set(expected) ^ set(state) or {key for key in expected if expected[key].shape != state[key].shape}
    if wrong:
        raise CheckpointError(
            f"adapter {folder} fits {len(set(expected) & set(state))} of {len(expected)} tensors of the model; "
            f"first that differs: {min(wrong)}; it was trained on another base"
        )
    peft.set_peft_model_state_dict(model, state)


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
                f"adapter {adapter} was trained on {recorded.get('base')} with {key} {recorded.get(key)}, but the "
                f"loaded base {found['base']} has {found[key]}; load the base it was trained on"
            )


def check_frozen(model: nn.Module, facts: Mapping[str, Any]) -> None:
    """Compare the base with its own `base_facts` of before.

    Raises: ModelError if a single frozen weight changed.
    """
    found = base_checksum(model)
    if found != facts["checksum"]:
        raise ModelError(
            f"the frozen base changed while it was trained on (checksum {facts['checksum']} before, {found} now); nothing of "
            "this run since its last check can be trusted: resume from an earlier checkpoint, and report it"
        )


def base_facts(model: nn.Module) -> dict[str, Any]:
    """Return name, vocabulary, dtype and checksum of the base, for the record beside an adapter."""
    plain = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
    embeddings = cast(nn.Embedding, plain.get_input_embeddings())
    return {
        "base": plain.name_or_path,
        "vocab": embeddings.num_embeddings,
        "dtype": str(embeddings.weight.dtype).removeprefix("torch."),
        "checksum": base_checksum(model),
    }


def adapted_layers(model: PeftModel) -> dict[str, Any]:
    """Return the layers that carry LoRA matrices, by their names in the base."""
    return {name: module for name, module in _modules(model) if isinstance(module, LoraLayer)}


@torch.no_grad()
def merged_state(model: PeftModel, *, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return plain weights by their names in the base: `merged_weight` where adapted, else the base's own tensor.

    Cast once to `dtype` (None: that of the base).
    """
    merged: dict[str, Tensor] = {}
    layers = adapted_layers(model)
    for name, parameter in _base_parameters(model):
        layer = layers.get(name.removesuffix(".weight"))
        if layer is None:
            merged[name] = parameter if dtype is None else parameter.to(dtype)
            continue
        down, up = (cast(Tensor, part["default"].weight) for part in (layer.lora_A, layer.lora_B))
        weight = merged_weight(parameter, down, up, scale=cast(float, layer.scaling["default"]))
        merged[name] = weight.to(dtype or plain_weight(parameter).dtype)
    return merged


@torch.no_grad()
def merged_weight(parameter: nn.Parameter, down_RI: Tensor, up_OR: Tensor, *, scale: float) -> Tensor:
    """Return W + scale * B A ([O, I]) in float32, from the W of the pristine base: nothing drifts over many steps."""
    return torch.addmm(plain_weight(parameter).float(), up_OR.float(), down_RI.float(), alpha=scale)


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
    """Rename `source` to `target`; what was there goes away only after the new one is in place.

    A process that dies between the two renames leaves no target; `restore_folders` brings the old one back.
    """
    source.chmod(0o755)
    if not target.exists():
        source.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}{_OLD}", dir=target.parent))
    target.rename(old / "content")
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def restore_folders(root: Path) -> None:
    """Put back what a killed `replace_folder` moved aside under `root` where no new one came; remove its leftovers."""
    for old in [*root.rglob(f".*{_OLD}*")]:
        target = old.parent / old.name[1:].rpartition(_OLD)[0]
        if (old / "content").is_dir() and not target.exists():
            (old / "content").rename(target)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _seeded(device: torch.device, seed: int) -> Generator[None]:
    """Draw from a seed inside, and leave the generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _check_coverage(model: PeftModel) -> None:
    base = cast(Any, model.get_base_model())
    head = base.get_output_embeddings()
    inside_adapters = ("lora_", "base_layer")
    bare: list[str] = []
    for name, module in _modules(model):
        if isinstance(module, nn.Linear) and module is not head and not any(part in name for part in inside_adapters):
            bare.append(name)
    if bare:
        raise ModelError(
            f"{len(bare)} linear layers have no adapter, the first is {bare[0]}; this family is unsupported"
        )
    if isinstance(head, LoraLayer) or isinstance(base.get_input_embeddings(), LoraLayer):
        raise ModelError("the adapter reached the output head or the embeddings; this family is unsupported")


def _modules(model: PeftModel) -> list[tuple[str, nn.Module]]:
    return cast(list[tuple[str, nn.Module]], [*model.get_base_model().named_modules()])


def _base_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The base's parameters under their plain names, adapters left out; tied ones once."""
    base: nn.Module = model.get_base_model() if isinstance(model, PeftModel) else model
    for name, parameter in base.named_parameters():
        if "lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter


def plain_weight(parameter: nn.Parameter) -> Tensor:
    """Return the matrix that a parameter stands for: itself, or its values if it is stored in 4 bit."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter
    return require("bitsandbytes.functional", "gpu").dequantize_4bit(parameter.data, state)
