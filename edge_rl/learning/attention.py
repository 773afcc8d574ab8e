"""Attention over rows in which several completions share one prompt. Knows tensors only.

A dense mask over such a row would spend most of its work on pairs that do not see each other: with 8 completions as long as
their prompt, seven pairs in eight. Here the prompt attends to itself, and each completion to the prompt and itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from edge_rl.errors import ConfigError

# Shapes: R rows, S tokens of a row, P longest prompt, B completions, T longest completion, H query heads, G key-value heads,
# D head size, M completion tokens without padding.
SHARED_PROMPT_ATTENTION = "edge_rl_shared_prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPromptLayout:
    """Where prompts and completions stand in the rows of a microbatch."""

    prompt_length_R: Tensor
    row_B: Tensor
    """Row of each completion."""
    index_BT: Tensor
    """Place in its row of each completion token; padding repeats the last."""
    is_token_BT: Tensor
    """bool; False on padding."""
    prompt_width: int
    """P."""

    def mask(self) -> Tensor:
        """Return [B, 1, T, P + T] bool: True where a completion token may attend to prompt or completion."""
        width, (num, length) = self.prompt_width, self.index_BT.shape
        device = self.index_BT.device
        in_prompt_BP = torch.arange(width, device=device) < self.prompt_length_R[self.row_B].unsqueeze(1)
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        both = (in_prompt_BP.unsqueeze(1).expand(num, length, width), causal_TT.expand(num, length, length))
        return torch.cat(both, dim=2).unsqueeze(1)


def shared_prompt_attention(  # noqa: PLR0913  (the signature is that of transformers)
    module: torch.nn.Module,
    query_RHSD: Tensor,
    key_RGSD: Tensor,
    value_RGSD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: SharedPromptLayout,
    layout_mask: Tensor,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return ([R, S, H, D], None): attention by `layout`. Signature: an attention function of transformers.

    Raises: ConfigError where the model looks back less far than a row is long.
    """
    if sliding_window is not None and int(layout.prompt_length_R.max()) + layout.index_BT.shape[1] > sliding_window:
        raise ConfigError(
            f"a sequence exceeds the model's attention window of {sliding_window} tokens; lower rollout.max_tokens"
        )
    width, tokens = layout.prompt_width, query_RHSD.shape[2]
    repeats = query_RHSD.shape[1] // key_RGSD.shape[1]
    key, value = (tensor.repeat_interleave(repeats, dim=1) for tensor in (key_RGSD, value_RGSD))
    mixed_RHPD = scaled_dot_product_attention(
        query_RHSD[:, :, :width], key[:, :, :width], value[:, :, :width], is_causal=True, scale=scaling
    )
    query_own, key_own, value_own = (_blocks(tensor, layout) for tensor in (query_RHSD, key, value))
    key_all = torch.cat((key[layout.row_B, :, :width], key_own), dim=2)
    value_all = torch.cat((value[layout.row_B, :, :width], value_own), dim=2)
    mixed_BHTD = scaled_dot_product_attention(query_own, key_all, value_all, attn_mask=layout_mask, scale=scaling)
    # Where a prompt is shorter than P, the first pass also wrote on places of completions: the second one overwrites them.
    mixed_RSHD = pad(mixed_RHPD, (0, 0, 0, tokens - width)).transpose(1, 2)
    row_M = layout.row_B.unsqueeze(1).expand_as(layout.index_BT)[layout.is_token_BT]
    place_M = layout.index_BT[layout.is_token_BT]
    own_MHD = mixed_BHTD.transpose(1, 2)[layout.is_token_BT]
    return mixed_RSHD.index_put((row_M, place_M), own_MHD), None


def _blocks(tensor_RHSD: Tensor, layout: SharedPromptLayout) -> Tensor:
    """Return [B, H, T, D]: the tokens of each completion."""
    return tensor_RHSD.transpose(1, 2)[layout.row_B.unsqueeze(1), layout.index_BT].transpose(1, 2)


AttentionInterface.register(SHARED_PROMPT_ATTENTION, shared_prompt_attention)
