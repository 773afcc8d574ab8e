"""Base + adapter as plain matrices, for a scratch copy of the model that generates. Knows peft's file format.

The base is read and never written, so the copy can be rebuilt after every step without drift.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import Tensor

from edge_rl.errors import CheckpointError


def scratch_weights(model: PeftModel) -> Callable[[Path | None], Mapping[str, Tensor]]:
    """Return a function from an adapter folder to {name in the base: W + scale * B A}; None gives the base's own matrices.

    Sums are float32, the result has the dtype of the base. Raises (the function): CheckpointError for an adapter that lacks
    a matrix.
    """
    layers: dict[str, LoraLayer] = {
        name: module for name, module in model.get_base_model().named_modules() if isinstance(module, LoraLayer)
    }

    @torch.no_grad()
    def merged(adapter_dir: Path | None) -> Mapping[str, Tensor]:
        state = load_file(adapter_dir / "adapter_model.safetensors") if adapter_dir is not None else {}
        weights: dict[str, Tensor] = {}
        for name, layer in layers.items():
            weight: Tensor = layer.get_base_layer().weight
            if adapter_dir is not None:
                down, up = (_matrix(state, f"base_model.model.{name}.lora_{part}.weight", adapter_dir) for part in "AB")
                scale = layer.scaling["default"]
                weight = torch.addmm(weight.float(), up.to(weight.device), down.to(weight.device), alpha=scale)
            weights[f"{name}.weight"] = weight
        return weights

    return merged


def _matrix(state: Mapping[str, Tensor], key: str, adapter_dir: Path) -> Tensor:
    if key not in state:
        raise CheckpointError(f"adapter {adapter_dir} has no tensor {key}; it was trained on another base")
    return state[key].float()
