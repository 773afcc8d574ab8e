"""Rows of keys and values, each with its own length, and the attention that reads them."""

import pytest
import torch
from torch import Tensor, nn

from edge_rl.rollout.engines.slot_cache import SlotCache, grouped_attention

# Shapes: B rows, G key-value heads, H query heads, T new tokens, L cached length, D head size.
G, D = 2, 3


def _new(rows: int, tokens: int, *, seed: int) -> Tensor:
    return torch.randn(rows, G, tokens, D, generator=torch.Generator().manual_seed(seed))


def _write(
    cache: SlotCache, rows: list[int], starts: list[int], new_BGTD: Tensor, *, prefix: bool = False
) -> tuple[Tensor, Tensor]:
    positions_BT = torch.tensor(starts).unsqueeze(1) + torch.arange(new_BGTD.shape[2])
    cache.select(torch.tensor(rows), positions_BT, is_prefix=prefix)
    return cache.update(new_BGTD, -new_BGTD, 0)


def test_slot_cache_returns_what_was_written_row_by_row_at_its_own_place() -> None:
    cache = SlotCache(num_layers=1, slots=3)
    first, second, third = _new(2, 4, seed=0), _new(2, 1, seed=1), _new(1, 2, seed=2)
    keys, values = _write(cache, [2, 0], [0, 0], first)
    assert torch.equal(keys, first) and torch.equal(values, -first)
    # row 0 goes on at place 4, row 2 at place 2: its places 2 and 3 were padding
    keys, values = _write(cache, [0, 2], [4, 2], second)
    assert cache.length == 5
    assert torch.equal(keys[0, :, :5], torch.cat([first[1], second[0]], dim=1))
    assert torch.equal(keys[1, :, :3], torch.cat([first[0, :, :2], second[1]], dim=1))
    assert torch.equal(values, -keys)
    keys, _ = _write(cache, [2], [3], third)
    assert torch.equal(keys[0], torch.cat([first[0, :, :2], second[1], third[0]], dim=1))


def test_slot_cache_reads_a_prefix_of_rows_in_place() -> None:
    cache = SlotCache(num_layers=1, slots=3)
    first, second = _new(3, 4, seed=0), _new(2, 1, seed=1)
    _write(cache, [0, 1, 2], [0, 0, 0], first, prefix=True)
    keys, _ = _write(cache, [0, 1], [4, 4], second, prefix=True)
    gathered, _ = _write(cache, [0, 1], [4, 4], second)
    assert torch.equal(keys, gathered)
    assert torch.equal(keys, torch.cat([first[:2], second], dim=2))


@pytest.mark.parametrize("capacity", [64, 128])
def test_slot_cache_copies_a_row_that_fills_its_capacity(capacity: int) -> None:
    cache = SlotCache(num_layers=1, slots=3)
    content = _new(1, capacity, seed=0)
    _write(cache, [1], [0], content)
    cache.copy_row(1, [0, 2], capacity)
    more = _new(3, 1, seed=1)
    keys, values = _write(cache, [0, 1, 2], [capacity] * 3, more, prefix=True)
    assert keys.shape == (3, G, capacity + 1, D)
    for row in range(3):
        assert torch.equal(keys[row, :, :capacity], content[0])
        assert torch.equal(keys[row, :, capacity:], more[row])
    assert torch.equal(values, -keys)


def test_slot_cache_copies_only_the_length_that_is_asked_for() -> None:
    cache = SlotCache(num_layers=1, slots=2)
    content = _new(2, 6, seed=0)
    _write(cache, [0, 1], [0, 0], content)
    cache.copy_row(0, [1], 4)
    keys, _ = _write(cache, [1], [6], _new(1, 1, seed=1))
    assert torch.equal(keys[0, :, :4], content[0, :, :4])
    assert torch.equal(keys[0, :, 4:6], content[1, :, 4:6])


def test_slot_cache_keeps_its_content_when_it_grows() -> None:
    cache = SlotCache(num_layers=1, slots=1)
    content = _new(1, 200, seed=0)
    keys = torch.empty(0)
    for place in range(200):
        keys, _ = _write(cache, [0], [place], content[:, :, place : place + 1], prefix=True)
    assert torch.equal(keys, content)


def test_slot_cache_keeps_layers_apart() -> None:
    cache = SlotCache(num_layers=2, slots=1)
    first, second = _new(1, 2, seed=0), _new(1, 2, seed=1)
    cache.select(torch.tensor([0]), torch.tensor([[0, 1]]), is_prefix=True)
    cache.update(first, first, 0)
    cache.update(second, second, 1)
    more = _new(1, 1, seed=2)
    cache.select(torch.tensor([0]), torch.tensor([[2]]), is_prefix=True)
    keys, _ = cache.update(more, more, 1)
    assert torch.equal(keys[:, :, :2], second)


def test_slot_cache_is_empty_after_release() -> None:
    cache = SlotCache(num_layers=1, slots=1)
    _write(cache, [0], [0], _new(1, 3, seed=0))
    cache.release()
    keys, _ = _write(cache, [0], [1], _new(1, 1, seed=1))
    assert torch.equal(keys[:, :, 0], torch.zeros(1, G, D))


@pytest.mark.parametrize(("heads", "tokens"), [(2, 1), (4, 1), (6, 5)])
def test_grouped_attention_equals_attention_with_repeated_keys(heads: int, tokens: int) -> None:
    length, scaling = 7, 0.4
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads, tokens, D, generator=generator, dtype=torch.float32)
    keys, values = _new(2, length, seed=1), _new(2, length, seed=2)
    hidden = torch.arange(length) > torch.arange(length - tokens, length).unsqueeze(1)
    mask = torch.zeros(2, 1, tokens, length).masked_fill_(hidden, torch.finfo(torch.float32).min)
    found, weights = grouped_attention(nn.Identity(), query, keys, values, mask, scaling=scaling)
    # by hand: query head h reads key-value head h // (H / G)
    repeated_keys, repeated_values = (part.repeat_interleave(heads // G, dim=1) for part in (keys, values))
    scores = (query @ repeated_keys.transpose(2, 3)) * scaling
    scores = scores.masked_fill(hidden, -torch.inf)
    expected = (scores.softmax(-1) @ repeated_values).transpose(1, 2)
    assert weights is None
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
