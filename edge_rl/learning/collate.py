"""Rollouts -> padded tensors. Knows tensors and records, no model.

Rollouts of one prompt share a row: the prompt stands there once, followed by the completions. Each completion sees the prompt
and itself only, and its positions go on from the prompt's, so the result equals that of separate rows at a fraction of the
work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edge_rl.learning.attention import SharedPromptLayout
from edge_rl.types import Rollout

# Shapes: R rows, S tokens of a row (padded), B rollouts, T completion tokens (padded), N policy tokens.


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A rollout with what the loss needs to know of it."""

    rollout: Rollout
    advantages: tuple[float, ...]
    """[T] one per completion token; read where the policy wrote the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Rollouts of one prompt that share a row."""

    items: tuple[Item, ...]

    @property
    def num_tokens(self) -> int:
        """S: prompt and completions."""
        prompt = len(self.items[0].rollout.prompt.token_ids)
        return prompt + sum(len(item.rollout.token_ids) for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """The tensors of some rows.

    Example: prompt (7, 8), completions (1, 2) and (3,) -> token_ids (7, 8, 1, 2, 3), positions (0, 1, 2, 3, 2); the
    tokens 1 and 3 are both predicted from index 1.
    """

    items: tuple[Item, ...]
    token_ids_RS: Tensor
    positions_RS: Tensor
    layout: SharedPromptLayout
    """Which tokens see which."""
    row_N: Tensor
    """Row of each policy token."""
    source_N: Tensor
    """Index in its row of the token whose hidden state predicts it."""
    target_N: Tensor
    """Its id."""
    rollout_N: Tensor
    """Index of its rollout in `items`."""
    place_N: Tensor
    """Index in its completion."""
    num_places: int
    """T: longest completion."""

    def scatter(self, values_N: Tensor, fill: float = 0.0) -> Tensor:
        """Return [B, T] with one value per policy token and `fill` elsewhere; differentiable."""
        padded_BT = values_N.new_full((len(self.items), self.num_places), fill)
        return padded_BT.index_put((self.rollout_N, self.place_N), values_N)


def make_rows(groups: Sequence[Sequence[Item]], *, max_tokens: int) -> list[Row]:
    """Return rows of at most `max_tokens` tokens; a single completion that is longer has a row of its own.

    `groups`: items with the same prompt each. Completions are sorted by length, so that similar ones share a row.
    """
    rows: list[Row] = []
    for group in groups:
        row: list[Item] = []
        for item in sorted(group, key=lambda item: len(item.rollout.token_ids)):
            if row and Row(items=(*row, item)).num_tokens > max_tokens:
                rows.append(Row(items=tuple(row)))
                row = []
            row.append(item)
        if row:
            rows.append(Row(items=tuple(row)))
    return rows


def make_microbatches(rows: Sequence[Row], *, max_tokens: int) -> list[list[Row]]:
    """Return the rows in microbatches of at most `max_tokens` tokens, padding included; longest first.

    Longest first: if the memory does not suffice, the first microbatch says so.
    """
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.num_tokens, reverse=True):
        # The first row of a microbatch is its longest.
        if batches and batches[-1][0].num_tokens * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def collate(rows: Sequence[Row], *, pad_token_id: int, device: torch.device | str = "cpu") -> Microbatch:
    """Return the tensors of some rows."""
    width = max(row.num_tokens for row in rows)
    token_ids: list[list[int]] = []
    positions: list[list[int]] = []
    starts: list[tuple[int, int]] = []
    row_index: list[int] = []
    source: list[int] = []
    target: list[int] = []
    rollout_index: list[int] = []
    place: list[int] = []
    items: list[Item] = []
    for number, row in enumerate(rows):
        prompt = row.items[0].rollout.prompt.token_ids
        row_ids, row_positions = list(prompt), list(range(len(prompt)))
        for item in row.items:
            completion = item.rollout.token_ids
            start = len(row_ids)
            starts.append((number, start))
            for index, is_policy in enumerate(item.rollout.loss_mask):
                if is_policy:
                    row_index.append(number)
                    source.append(start + index - 1 if index else len(prompt) - 1)
                    target.append(completion[index])
                    rollout_index.append(len(items))
                    place.append(index)
            row_ids += completion
            row_positions += range(len(prompt), len(prompt) + len(completion))
            items.append(item)
        padding = width - len(row_ids)
        token_ids.append(row_ids + [pad_token_id] * padding)
        positions.append(row_positions + [0] * padding)

    def tensor(values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Microbatch(
        items=tuple(items),
        token_ids_RS=tensor(token_ids),
        positions_RS=tensor(positions),
        layout=_layout(rows, items, starts, device),
        row_N=tensor(row_index),
        source_N=tensor(source),
        target_N=tensor(target),
        rollout_N=tensor(rollout_index),
        place_N=tensor(place),
        num_places=max(len(item.rollout.token_ids) for item in items),
    )


def _layout(
    rows: Sequence[Row], items: Sequence[Item], starts: Sequence[tuple[int, int]], device: torch.device | str
) -> SharedPromptLayout:
    """Return the layout of rows whose completions begin at `starts`, as (row, place)."""
    lengths = [len(item.rollout.token_ids) for item in items]
    prompts = [len(row.items[0].rollout.prompt.token_ids) for row in rows]
    offset_1T = torch.arange(max(lengths), device=device).unsqueeze(0)
    length_B1 = torch.tensor(lengths, device=device).unsqueeze(1)
    start_B1 = torch.tensor([start for _, start in starts], device=device).unsqueeze(1)
    return SharedPromptLayout(
        prompt_length_R=torch.tensor(prompts, device=device),
        row_B=torch.tensor([row for row, _ in starts], device=device),
        index_BT=start_B1 + torch.minimum(offset_1T, length_B1 - 1),
        is_token_BT=offset_1T < length_B1,
        prompt_width=max(prompts),
    )
