"""What counts as garbled, and what must not."""

import random

import pytest

from edge_rl.rollout.filters import compression_ratio, garble_reason, loop_period
from edge_rl.types import Rollout
from tests.builders import make_rollout, policy, tool

PROSE = (
    "We want the price of one pen. The box costs 12.60 and holds 14 pens, so we divide. Let the computer do that: "
    "it prints 0.9. A pen costs 0.9, and two boxes cost 25.2, which is what the question asks for in the end. "
)


def _rollout(*token_ids: int, text: str = "", logprob: float = -0.5) -> Rollout:
    return make_rollout(policy(*token_ids, logprobs=[logprob] * len(token_ids)), policy_text=text)


@pytest.mark.parametrize("period", [1, 2, 3, 6, 31, 32])
def test_a_sequence_that_ends_in_one_piece_over_and_over_is_a_loop(period: int) -> None:
    piece = list(range(100, 100 + period))
    repeats = max(8, -(-48 // period))
    assert loop_period([5, 6, 7, *piece * repeats]) == period
    # an unfinished last repeat
    assert loop_period([5, 6, 7, *piece * (repeats + 1), *piece[: period // 2]]) == period
    # once less than the limits ask for
    assert loop_period([5, 6, 7, *piece * (repeats - 1)]) is None
    # a loop that the policy left again
    assert loop_period([*piece * (repeats + 2), 1, 2]) is None


def test_digits_dashes_and_lists_are_no_loops() -> None:
    assert loop_period([7] * 40) is None  # a row of forty dashes
    assert loop_period(list(range(200))) is None
    assert loop_period([token for number in range(30) for token in (50, number, 51)]) is None  # "- 1," "- 2," ...
    assert loop_period([]) is None


def test_what_a_tool_printed_is_no_loop_of_the_policy() -> None:
    assert garble_reason(make_rollout(policy(1, 2, 3), tool(*[9] * 200))) is None


@pytest.mark.parametrize(
    ("rollout", "reason"),
    [
        (_rollout(*[9, 8] * 60), "2 tokens over and over"),
        (_rollout(1, text="a\ufffdb\ufffd"), "broken characters"),
        (_rollout(1, text="the answer is " * 80), "compresses"),
        (_rollout(*range(16), logprob=-8.1), "mean logprob"),
    ],
)
def test_each_kind_of_garble_is_found_with_its_reason(rollout: Rollout, reason: str) -> None:
    found = garble_reason(rollout)
    assert found is not None and reason in found


@pytest.mark.parametrize(
    "rollout",
    [
        _rollout(),
        _rollout(1, text=PROSE * 3),  # the same paragraph three times is bad style, no garble
        _rollout(1, text="x" + "\ufffd" + "y" * 40),
        _rollout(1, text="ab" * 190),
        _rollout(*range(15), logprob=-9.0),
        _rollout(*range(16), logprob=-7.9),
    ],
)
def test_what_is_only_odd_is_kept(rollout: Rollout) -> None:
    assert garble_reason(rollout) is None


def test_compression_is_bytes_over_compressed_bytes() -> None:
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=2000)
    assert 1.0 < compression_ratio("".join(letters)) < 2.0
    assert compression_ratio("a" * 2000) > 50
    assert compression_ratio("a" * 399) == 1.0
    assert compression_ratio("\ud800" * 500) > 1.0  # a lone surrogate is no reason to fail
