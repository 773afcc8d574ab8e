"""Frozen linear layers with weights in the blocked layout of oneDNN, for float32 on a CPU. Knows modules and tensors only.

A plain matrix product re-packs the weight in every call. With the few rows of a decode step that costs 20 to 40 % of the
time, in the output head up to half. Elsewhere (GPU, 16 bit, a build without oneDNN) layers stay as they are.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

# Shapes: N rows, I inputs, O outputs.
_ROWS_HINT = 128


def _pack(weight_OI: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous(), _ROWS_HINT)


def _apply(inputs: Tensor, packed: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, packed, None, "none", [], "")


def can_pack(linear: nn.Linear) -> bool:
    """Return whether a linear layer gains from packing."""
    if getattr(linear, "bias", None) is not None:
        return False
    weight = linear.weight
    is_plain = type(weight) in (nn.Parameter, Tensor) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return is_plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


class _FrozenLinear(torch.autograd.Function):
    """x W^T with a gradient for x only."""

    @staticmethod
    def forward(ctx: Any, inputs_NI: Tensor, forth: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return _apply(inputs_NI, forth)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return _apply(grad_outputs[0].contiguous(), back), None, None


class PackedLinear(nn.Linear):
    """A frozen linear layer that multiplies with packed copies of its weight.

    `weight` stays readable for merging; the packed copies are what is multiplied with, so `repack` follows every change.
    """

    def __init__(self, linear: nn.Linear, *, keep_weight: bool) -> None:
        """`keep_weight`: keep the plain matrix beside the packed one (needed for gradients and merging)."""
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
        self._keep_weight = keep_weight
        self._forth: Tensor
        self._back: Tensor | None = None
        self.repack(linear.weight)

    def repack(self, weight_OI: Tensor) -> None:
        """Multiply with this matrix from now on."""
        self._forth = _pack(weight_OI)
        if self._keep_weight:
            self._back = _pack(weight_OI.t())
        else:
            self.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    def drop(self) -> None:
        """Give the packed copies back, until the next `repack`."""
        self._forth, self._back = torch.empty(0), None

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., O]."""
        assert self._forth.numel(), "a layer that was dropped multiplies again after `repack`"
        if torch.is_grad_enabled() and input.requires_grad:
            assert self._back is not None, "a layer without its plain weight is for inference"
            return cast(Tensor, _FrozenLinear.apply(input, self._forth, self._back))
        return _apply(input, self._forth)


def pack_linears(
    model: nn.Module, *, keep_weight: bool, is_wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, PackedLinear]:
    """Replace the linear layers of a model that gain from it; return them by name."""
    modules: dict[str, nn.Module] = dict(model.named_modules())  # pyright: ignore[reportUnknownArgumentType]
    packed: dict[str, PackedLinear] = {}
    for name, linear in modules.items():
        if not (isinstance(linear, nn.Linear) and is_wanted(name) and can_pack(linear)):
            continue
        packed[name] = PackedLinear(linear, keep_weight=keep_weight)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, packed[name])
    return packed
