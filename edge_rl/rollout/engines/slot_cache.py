"""The key-value cache of the hf engine: one row per sequence, each with a length of its own. Knows tensors only.

`SlotCache` is what a transformers model sees as `past_key_values`: the model calls `update` once per layer and attends to
what comes back. `grouped_attention` is the attention that reads it without repeating keys for grouped queries.
"""

from typing import Any

import torch
from torch import Tensor

from edge_rl.errors import ConfigError

# Shapes: S slots, B rows of this call, T new tokens, L cached length, H query heads, G key-value heads, D head size.


class SlotCache:
    """Keys and values of S sequences, grown when a sequence needs more room."""

    def __init__(self, *, num_layers: int, slots: int) -> None:
        """`slots`: sequences that are held at once."""
        self.slots = slots
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers
        self._capacity = 0
        self._rows_B = torch.empty(0, dtype=torch.long)
        self._positions_BT = torch.empty(0, 0, dtype=torch.long)
        self._length = 0
        self._is_prefix = False
        self._is_fresh = False

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens."""
        if length <= self._capacity:
            return
        self._capacity = -(-length // 64) * 64
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                if old is not None:
                    grown = old.new_zeros(old.shape[0], old.shape[1], self._capacity, old.shape[3])
                    grown[:, :, : old.shape[2]] = old
                    store[layer] = grown

    def select(self, rows_B: Tensor, positions_BT: Tensor, *, is_prefix: bool) -> None:
        """Say which rows the next forward pass writes, and at which positions.

        `is_prefix`: the rows are 0..B-1, so that the cache can be read in place instead of gathered.
        """
        self._rows_B, self._positions_BT = rows_B, positions_BT
        self._length = int(positions_BT.max()) + 1
        self._is_prefix = is_prefix
        # Nothing is cached before position 0: the new keys are all there is to attend to.
        self._is_fresh = positions_BT.shape[1] == self._length and bool((positions_BT[:, 0] == 0).all())
        self.reserve(self._length)

    @property
    def length(self) -> int:
        """L: how many cached positions the next forward pass attends over."""
        return self._length

    def update(self, keys_BGTD: Tensor, values_BGTD: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Write the new keys and values of one layer; return all that the selected rows may attend to, [B, G, L, D]."""
        return (
            self._write(self._keys, keys_BGTD, layer),
            self._write(self._values, values_BGTD, layer),
        )

    def copy_row(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first `length` positions of one row to other rows."""
        for store in (self._keys, self._values):
            for tensor in store:
                assert tensor is not None, "a row is copied after it was written"
                # clone: where the length fills the capacity, torch sees the same memory on both sides and refuses
                tensor[targets, :, :length] = tensor[source, :, :length].clone()

    def release(self) -> None:
        """Give the memory back."""
        for store in (self._keys, self._values):
            store[:] = [None] * len(store)
        self._capacity = 0

    def _write(self, store: list[Tensor | None], new_BGTD: Tensor, layer: int) -> Tensor:
        tensor = store[layer]
        if tensor is None:
            tensor = new_BGTD.new_zeros(self.slots, new_BGTD.shape[1], self._capacity, new_BGTD.shape[3])
            store[layer] = tensor
        tensor[self._rows_B.unsqueeze(1), :, self._positions_BT] = new_BGTD.transpose(1, 2)
        if self._is_fresh:
            return new_BGTD
        if self._is_prefix:
            return tensor[: new_BGTD.shape[0], :, : self._length]
        return tensor[self._rows_B, :, : self._length]


def grouped_attention(  # noqa: PLR0913  (the signature is that of transformers)
    module: torch.nn.Module,
    query_BHTD: Tensor,
    key_BGLD: Tensor,
    value_BGLD: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return ([B, T, H, D], None): attention in which H / G query heads share one key-value head.

    `attention_mask`: additive [B, 1, T, L]. Signature: an attention function of transformers.

    Raises: ConfigError where the model looks back less far than the sequences are long.
    """
    if sliding_window is not None and key_BGLD.shape[2] > sliding_window:
        raise ConfigError(
            f"a sequence exceeds the model's attention window of {sliding_window} tokens; lower rollout.max_tokens"
        )
    batch, heads, tokens, size = query_BHTD.shape
    groups = key_BGLD.shape[1]
    query = query_BHTD.reshape(batch, groups, heads // groups * tokens, size)
    scores = torch.matmul(query * scaling, key_BGLD.transpose(2, 3))
    scores = scores.view(batch, groups, heads // groups, tokens, -1) + attention_mask.unsqueeze(2)
    scores = scores.view(batch, groups, heads // groups * tokens, -1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value_BGLD.dtype)
    mixed = torch.matmul(weights, value_BGLD).view(batch, heads, tokens, size)
    return mixed.transpose(1, 2).contiguous(), None
