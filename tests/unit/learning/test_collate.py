"""Rows that share a prompt: every index by hand."""

import pytest
import torch

from edge_rl.learning.collate import Item, Row, collate, make_microbatches, make_rows
from edge_rl.types import Segment
from tests.builders import hint, make_rollout, policy, tool

PAD = 99


def _item(*segments: Segment, prompt: tuple[int, ...] = (7, 8), advantage: float = 1.0) -> Item:
    rollout = make_rollout(*segments, prompt=prompt)
    return Item(rollout=rollout, advantages=(advantage,) * len(rollout.token_ids))


def test_collate_of_the_example_in_the_docstring() -> None:
    batch = collate([Row(items=(_item(policy(1, 2)), _item(policy(3))))], pad_token_id=PAD)
    assert batch.token_ids_RS.tolist() == [[7, 8, 1, 2, 3]]
    assert batch.positions_RS.tolist() == [[0, 1, 2, 3, 2]]
    assert batch.layout.prompt_width == 2
    assert batch.layout.prompt_length_R.tolist() == [2]
    assert batch.layout.row_B.tolist() == [0, 0]
    assert batch.layout.index_BT.tolist() == [[2, 3], [4, 4]]
    assert batch.layout.is_token_BT.tolist() == [[True, True], [True, False]]
    # the tokens 1 and 3 are both predicted from the last token of the prompt
    assert batch.source_N.tolist() == [1, 2, 1]
    assert batch.target_N.tolist() == [1, 2, 3]
    assert batch.row_N.tolist() == [0, 0, 0]
    assert batch.rollout_N.tolist() == [0, 0, 1]
    assert batch.place_N.tolist() == [0, 1, 0]
    assert batch.num_places == 2


def test_collate_of_two_rows_with_tool_and_hint_tokens_and_padding() -> None:
    #   row 0: P P | a0 E0 E0 a0 | a1          7 8 | 1 20 21 2 | 3
    #   row 1: P   | H  a2                     9   | 30 4
    rows = [
        Row(items=(_item(policy(1), tool(20, 21), policy(2)), _item(policy(3)))),
        Row(items=(_item(hint(30), policy(4), prompt=(9,)),)),
    ]
    batch = collate(rows, pad_token_id=PAD)
    assert batch.token_ids_RS.tolist() == [[7, 8, 1, 20, 21, 2, 3], [9, 30, 4, PAD, PAD, PAD, PAD]]
    assert batch.positions_RS.tolist() == [[0, 1, 2, 3, 4, 5, 2], [0, 1, 2, 0, 0, 0, 0]]
    assert batch.layout.prompt_width == 2
    assert batch.layout.prompt_length_R.tolist() == [2, 1]
    assert batch.layout.row_B.tolist() == [0, 0, 1]
    assert batch.layout.index_BT.tolist() == [[2, 3, 4, 5], [6, 6, 6, 6], [1, 2, 2, 2]]
    assert batch.layout.is_token_BT.sum(dim=1).tolist() == [4, 1, 2]
    assert batch.target_N.tolist() == [1, 2, 3, 4]
    # 2 is predicted from the last tool token, 4 from the hint
    assert batch.source_N.tolist() == [1, 4, 1, 1]
    assert batch.row_N.tolist() == [0, 0, 0, 1]
    assert batch.rollout_N.tolist() == [0, 0, 1, 2]
    assert batch.place_N.tolist() == [0, 3, 0, 1]
    assert batch.num_places == 4
    assert [item.rollout.token_ids for item in batch.items] == [(1, 20, 21, 2), (3,), (30, 4)]


def test_scatter_puts_one_value_per_policy_token() -> None:
    rows = [Row(items=(_item(policy(1), tool(20), policy(2)), _item(policy(3))))]
    batch = collate(rows, pad_token_id=PAD)
    values_N = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    scattered_BT = batch.scatter(values_N, fill=-1.0)
    torch.testing.assert_close(scattered_BT, torch.tensor([[0.1, -1.0, 0.2], [0.3, -1.0, -1.0]]))
    (scattered_BT * torch.arange(6).view(2, 3)).sum().backward()
    assert values_N.grad is not None
    assert values_N.grad.tolist() == [0.0, 2.0, 3.0]


def test_a_long_prompt_of_one_token_completions() -> None:
    batch = collate([Row(items=tuple(_item(policy(token), prompt=(7, 8, 9)) for token in (1, 2)))], pad_token_id=PAD)
    assert batch.source_N.tolist() == [2, 2]
    assert batch.positions_RS.tolist() == [[0, 1, 2, 3, 3]]


def test_make_rows_fills_rows_to_the_limit_and_sorts_by_length() -> None:
    # prompt of 2; completions of 3, 1, 2, 4 tokens; at most 8: 2 + 1 + 2 + 3 = 8, then 2 + 4
    group = [_item(policy(*range(length))) for length in (3, 1, 2, 4)]
    rows = make_rows([group], max_tokens=8)
    assert [[len(item.rollout.token_ids) for item in row.items] for row in rows] == [[1, 2, 3], [4]]
    assert [row.num_tokens for row in rows] == [8, 6]
    assert [[len(item.rollout.token_ids) for item in row.items] for row in make_rows([group], max_tokens=7)] == [
        [1, 2],
        [3],
        [4],
    ]


def test_make_rows_never_mixes_prompts() -> None:
    groups = [[_item(policy(1))], [_item(policy(2), prompt=(9,))]]
    rows = make_rows(groups, max_tokens=1000)
    assert [row.items[0].rollout.prompt.token_ids for row in rows] == [(7, 8), (9,)]


def test_make_rows_keeps_every_rollout_even_one_over_the_limit() -> None:
    group = [_item(policy(*range(length))) for length in (1, 50, 2)]
    rows = make_rows([group], max_tokens=10)
    assert [[len(item.rollout.token_ids) for item in row.items] for row in rows] == [[1, 2], [50]]


def test_make_microbatches_count_padding_and_put_the_longest_first() -> None:
    rows = [Row(items=(_item(policy(*range(length))),)) for length in (1, 8, 3, 4)]  # 3, 10, 5, 6 tokens
    batches = make_microbatches(rows, max_tokens=12)
    # 10 alone (2 x 10 > 12); 6 and 5 as 2 x 6 = 12; 3 alone (3 x 6 > 12)
    assert [[row.num_tokens for row in batch] for batch in batches] == [[10], [6, 5], [3]]


@pytest.mark.parametrize("max_tokens", [16, 40, 1000])
def test_nothing_is_lost_between_rollouts_and_microbatches(max_tokens: int) -> None:
    groups = [
        [_item(policy(*range(1 + (number * 7 + member * 5) % 11)), prompt=(number,) * 3) for member in range(5)]
        for number in range(4)
    ]
    batches = make_microbatches(make_rows(groups, max_tokens=max_tokens), max_tokens=max_tokens)
    collated = [collate(batch, pad_token_id=PAD) for batch in batches]
    found = sorted(
        (item.rollout.prompt.token_ids, item.rollout.token_ids) for batch in collated for item in batch.items
    )
    assert found == sorted(
        (item.rollout.prompt.token_ids, item.rollout.token_ids) for group in groups for item in group
    )
    assert all(batch.token_ids_RS.numel() <= max_tokens or len(batch.token_ids_RS) == 1 for batch in collated)
