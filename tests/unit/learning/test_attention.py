"""Attention over rows that share a prompt, against a dense mask over the whole row."""

import math

import pytest
import torch
from torch import Tensor, nn

from edge_rl.errors import ConfigError
from edge_rl.learning.attention import SharedPromptLayout, shared_prompt_attention
from edge_rl.learning.collate import Item, Row, collate
from tests.builders import make_rollout, policy

# Shapes: R rows, S tokens of a row, H query heads, G key-value heads, D head size.
G, D = 2, 4
SCALING = 0.4
# prompt length, lengths of the completions
SHAPES = {
    "one row": [(3, (2, 1, 4))],
    "prompts of different lengths": [(5, (1, 2)), (2, (3, 3, 1)), (1, (9,))],
    "a row shorter than the longest prompt": [(7, (2,)), (1, (1, 1))],
    "one completion a row": [(3, (4,)), (3, (2,))],
}


def _layout(shape: list[tuple[int, tuple[int, ...]]]) -> SharedPromptLayout:
    rows = [
        Row(
            items=tuple(
                Item(rollout=make_rollout(policy(*range(length)), prompt=range(num_prompt)), advantages=(1.0,) * length)
                for length in lengths
            )
        )
        for num_prompt, lengths in shape
    ]
    return collate(rows, pad_token_id=0).layout


def _seen(shape: list[tuple[int, tuple[int, ...]]], size: int) -> Tensor:
    """[R, S, S]: True where one token sees another, written down from the definition."""
    seen_RSS = torch.zeros(len(shape), size, size, dtype=torch.bool)
    for row, (num_prompt, lengths) in enumerate(shape):
        owners = [0] * num_prompt + [owner for owner, length in enumerate(lengths, start=1) for _ in range(length)]
        for place, owner in enumerate(owners):
            for other in range(place + 1):
                seen_RSS[row, place, other] = owners[other] in (0, owner)
    return seen_RSS


def _tensors(rows: int, heads: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(rows, heads, size, D, generator=generator, requires_grad=True),
        torch.randn(rows, G, size, D, generator=generator, requires_grad=True),
        torch.randn(rows, G, size, D, generator=generator, requires_grad=True),
    )


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("name", SHAPES)
def test_attention_and_its_gradients_equal_those_of_a_dense_mask(name: str, heads: int) -> None:
    shape = SHAPES[name]
    layout = _layout(shape)
    size = max(num_prompt + sum(lengths) for num_prompt, lengths in shape)
    query, key, value = _tensors(len(shape), heads, size)
    found_RSHD, weights = shared_prompt_attention(
        nn.Identity(), query, key, value, None, scaling=SCALING, layout=layout, layout_mask=layout.mask()
    )
    assert weights is None
    seen_RSS = _seen(shape, size)
    is_token_RS = seen_RSS.diagonal(dim1=1, dim2=2)
    dense_RSS = seen_RSS | torch.eye(size, dtype=torch.bool)  # padding sees itself, or its softmax were none
    scores = (query @ key.repeat_interleave(heads // G, dim=1).transpose(2, 3)) * SCALING
    mixed = scores.masked_fill(~dense_RSS.unsqueeze(1), -math.inf).softmax(-1) @ value.repeat_interleave(
        heads // G, dim=1
    )
    expected_RSHD = mixed.transpose(1, 2)
    torch.testing.assert_close(found_RSHD[is_token_RS], expected_RSHD[is_token_RS], atol=1e-6, rtol=0)

    upstream_RSHD = torch.randn(found_RSHD.shape, generator=torch.Generator().manual_seed(1))
    upstream_RSHD[~is_token_RS] = 0.0
    ours = torch.autograd.grad((found_RSHD * upstream_RSHD).sum(), (query, key, value))
    theirs = torch.autograd.grad((expected_RSHD * upstream_RSHD).sum(), (query, key, value))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_mask_by_hand() -> None:
    layout = _layout([(2, (2, 1)), (1, (2,))])
    yes, no = True, False
    assert layout.mask().squeeze(1).tolist() == [
        # P    P    own  own
        [[yes, yes, yes, no], [yes, yes, yes, yes]],
        [[yes, yes, yes, no], [yes, yes, yes, yes]],
        [[yes, no, yes, no], [yes, no, yes, yes]],
    ]


@pytest.mark.parametrize(("window", "is_refused"), [(6, True), (7, False), (None, False)])
def test_a_window_shorter_than_a_sequence_is_refused(window: int | None, is_refused: bool) -> None:
    layout = _layout([(3, (2, 4))])
    query, key, value = _tensors(1, 2, 9)

    def attend() -> None:
        shared_prompt_attention(
            nn.Identity(),
            query,
            key,
            value,
            None,
            scaling=SCALING,
            layout=layout,
            layout_mask=layout.mask(),
            sliding_window=window,
        )

    if not is_refused:
        attend()
        return
    with pytest.raises(ConfigError, match=r"attention window of 6 tokens; lower rollout\.max_tokens"):
        attend()
