"""Tool calls in text, and tool results as text."""

import pytest

from edge_rl.rollout.turns import fence_token_ids, find_tool_call, shorten, tool_result, turn_texts
from edge_rl.types import Execution, ExecutionStatus
from tests.builders import PieceCodec, hint, policy, tool


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("Let me see. ```python\nprint(1)\n```", "print(1)\n"),
        ("```python  \t\nprint(1)\n```\n", "print(1)\n"),
        ("```python\n```", ""),
        ("```python\na = 1\n\nprint(a)\n```  \n\n", "a = 1\n\nprint(a)\n"),
        ("```python\nprint(1)\n```\nand again\n```python\nprint(2)\n```", "print(2)\n"),
        ("```python\ns = '`'\n```", "s = '`'\n"),
    ],
)
def test_find_tool_call_returns_the_block_that_ends_the_turn(turn: str, code: str) -> None:
    assert find_tool_call(turn) == code


@pytest.mark.parametrize(
    "turn",
    [
        "",
        "The answer is 4.",
        "```python\nprint(1)\n",
        "```python\nprint(1)\n``",
        "```python\nprint(1)\n```\nThe answer",
        "```\nprint(1)\n```",
        "```py\nprint(1)\n```",
        "```python3\nprint(1)\n```",
        "```bash\nls\n```",
        "```output\n1\n```",
        "``python\nprint(1)\n```",
        "```python print(1)```",
        "```Python\nprint(1)\n```",
    ],
)
def test_find_tool_call_sees_none_where_the_block_is_open_or_of_another_language(turn: str) -> None:
    assert find_tool_call(turn) is None


def test_find_tool_call_is_linear_in_open_fences() -> None:
    # a pattern that backtracks would need hours for this
    assert find_tool_call("```python\n" + "`` " * 50_000) is None


def test_fence_token_ids_are_all_tokens_with_a_backtick() -> None:
    codec = PieceCodec()
    expected = {token for token in range(320) if "`" in codec.decode([token])}
    assert fence_token_ids(codec) == expected
    assert len(expected) > 10


def test_tool_result_is_an_output_block_on_lines_of_its_own() -> None:
    execution = Execution(status=ExecutionStatus.OK, stdout="408\n")
    assert tool_result(execution, max_chars=100) == "\n```output\n408\n```\n"


def test_tool_result_keeps_blank_lines_inside_and_drops_them_at_the_end() -> None:
    execution = Execution(status=ExecutionStatus.OK, stdout="\n1\n\n2\n\n\n")
    assert tool_result(execution, max_chars=100) == "\n```output\n\n1\n\n2\n```\n"


def test_tool_result_of_silent_code_is_an_empty_block() -> None:
    execution = Execution(status=ExecutionStatus.OK, stdout="")
    assert tool_result(execution, max_chars=100) == "\n```output\n\n```\n"


def test_tool_result_shows_the_error_after_what_was_printed() -> None:
    error = "ZeroDivisionError: division by zero"
    printed = Execution(status=ExecutionStatus.ERROR, stdout="1\n", error=error)
    silent = Execution(status=ExecutionStatus.ERROR, stdout="", error=error)
    assert tool_result(printed, max_chars=100) == f"\n```output\n1\n{error}\n```\n"
    assert tool_result(silent, max_chars=100) == f"\n```output\n{error}\n```\n"


def test_tool_result_names_the_status_where_there_is_no_message() -> None:
    execution = Execution(status=ExecutionStatus.TIMEOUT, stdout="")
    assert tool_result(execution, max_chars=100) == "\n```output\ntimeout\n```\n"


def test_tool_result_shortens_the_body_and_not_the_fences() -> None:
    execution = Execution(status=ExecutionStatus.OK, stdout="a" * 500)
    text = tool_result(execution, max_chars=20)
    body = text.removeprefix("\n```output\n").removesuffix("\n```\n")
    assert len(body) == 20
    assert text == f"\n```output\n{body}\n```\n"


def test_shorten_leaves_a_text_of_exactly_the_limit() -> None:
    assert shorten("a" * 16, 16) == "a" * 16


def test_shorten_keeps_head_and_tail_and_is_exactly_as_long_as_allowed() -> None:
    text = "".join(chr(ord("a") + index % 26) for index in range(17))  # abcdefghijklmnopq
    # 16 characters less 5 of the mark leave 11: 5 of the head, 6 of the tail
    assert shorten(text, 16) == "abcde\n...\nlmnopq"


@pytest.mark.parametrize("max_chars", [16, 17, 100, 801])
def test_shorten_never_exceeds_the_limit(max_chars: int) -> None:
    short = shorten("x" * 10_000, max_chars)
    assert len(short) == max_chars
    assert short.count("\n...\n") == 1


def test_turn_texts_join_a_turn_that_spans_chunks_and_split_at_tool_results() -> None:
    codec = PieceCodec()
    first, second = codec.encode("```python\npri"), codec.encode("nt(1)\n```")
    result, last = codec.encode("\n```output\n1\n```\n"), codec.encode("So 1.")
    segments = [policy(*first), policy(*second), tool(*result), policy(*last), hint(*codec.encode(" Sure."))]
    assert turn_texts(segments, codec) == ["```python\nprint(1)\n```", "So 1. Sure."]


def test_turn_texts_of_nothing_is_one_empty_turn() -> None:
    assert turn_texts([], PieceCodec()) == [""]
