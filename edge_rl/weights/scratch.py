"""A copy of the model that generates: base + adapter as plain matrices. Knows peft's file format.

The base of the trained model is read and never written, so the copy can be rebuilt after every step without drift.
"""

import copy
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import torch as safetensors_torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from edge_rl.errors import CheckpointError
from edge_rl.weights.adapters import merged_weight, plain_weight
from edge_rl.weights.packed import PackedLinear, pack_linears


class ScratchModel:
    """Holds the copy; `load` makes it equal to the base with an adapter."""

    def __init__(self, base: PreTrainedModel, model: PeftModel) -> None:
        """`base`: the plain model before an adapter was attached, to be copied; `model`: the same with its adapter."""
        self.model = base
        self._packed: dict[str, PackedLinear] = pack_linears(base, keep_weight=False)
        self._parameters = dict(base.named_parameters())
        modules: dict[str, nn.Module] = dict(model.get_base_model().named_modules())  # pyright: ignore[reportUnknownArgumentType]
        self._layers = {name: module for name, module in modules.items() if isinstance(module, LoraLayer)}

    @torch.no_grad()
    def load(self, adapter_dir: Path | None) -> None:
        """Set every adapted matrix to `merged_weight`; None gives the base's own.

        Raises: CheckpointError for an adapter that lacks a matrix.
        """
        state = (
            safetensors_torch.load_file(adapter_dir / "adapter_model.safetensors") if adapter_dir is not None else {}
        )
        for name, layer in self._layers.items():
            parameter = cast(nn.Parameter, layer.get_base_layer().weight)
            if adapter_dir is None:
                weight = plain_weight(parameter)
            else:
                matrices = [_matrix(state, f"base_model.model.{name}.lora_{part}.weight", adapter_dir) for part in "AB"]
                down, up = (matrix.to(parameter.device) for matrix in matrices)
                weight = merged_weight(parameter, down, up, scale=cast(float, layer.scaling["default"]))
            if name in self._packed:
                self._packed[name].repack(weight)
            else:
                self._parameters[f"{name}.weight"].copy_(weight)

    def unload(self) -> None:
        """Give most of the copy's memory back; it generates again after the next `load`."""
        for name in self._layers.keys() & self._packed.keys():
            self._packed[name].drop()


def copy_of(base: PreTrainedModel) -> PreTrainedModel:
    """Return a frozen copy of a model, to become a ScratchModel; layers stored in 4 bit become plain ones."""
    twin = copy.deepcopy(base).requires_grad_(False)
    modules: dict[str, nn.Module] = dict(base.named_modules())  # pyright: ignore[reportUnknownArgumentType]
    for name, linear in modules.items():
        if not (isinstance(linear, nn.Linear) and hasattr(linear.weight, "quant_state")):
            continue
        plain = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter(plain_weight(cast(nn.Parameter, linear.weight)), requires_grad=False)
        plain.bias = linear.bias
        parent, _, child = name.rpartition(".")
        setattr(twin.get_submodule(parent), child, plain)
    return twin


def _matrix(state: dict[str, Tensor], key: str, adapter_dir: Path) -> Tensor:
    if key not in state:
        raise CheckpointError(f"adapter {adapter_dir} has no tensor {key}; it was trained on another base")
    return state[key]
