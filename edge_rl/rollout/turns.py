"""Tool calls in the text of a rollout, and tool results as text. Knows no model and no interpreter.

The protocol (after CoRT, arXiv:2506.09820): the policy writes a ```python block; what it prints comes back as an ```output
block; the policy goes on. A turn ends exactly with the closing fence, so the result starts on a line of its own.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from edge_rl.types import Author, Execution, ExecutionStatus, Segment

FENCE = "```"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_TOOL_CALL = re.compile(r"```python[ \t]*\n((?:(?!```).)*)```\s*\Z", re.DOTALL)


class Codec(Protocol):
    """What the rollout needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str:
        """Return the text of token ids."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id."""
        ...


def find_tool_call(turn: str) -> str | None:
    """Return the code of the python block that ends this turn; None while there is none or it is still open."""
    match = _TOOL_CALL.search(turn)
    return match.group(1) if match else None


def fence_token_ids(codec: Codec) -> frozenset[int]:
    """Return the ids of all tokens with a backtick in them: only after these can a fence have closed."""
    return frozenset(token_id for token, token_id in codec.get_vocab().items() if "`" in token)


def is_thinking(text: str) -> bool:
    """Return whether a think block is open at the end of a text."""
    return text.rfind(THINK_OPEN) > text.rfind(THINK_CLOSE)


def tool_result(execution: Execution, *, max_chars: int) -> str:
    """Return the text that the policy reads after its block: what was printed, and the error where there was one."""
    body = execution.stdout.rstrip("\n")
    if execution.status is not ExecutionStatus.OK:
        body = f"{body}\n{execution.error}" if body else execution.error or execution.status.value
    return f"\n{FENCE}output\n{shorten(body, max_chars)}\n{FENCE}\n"


def shorten(text: str, max_chars: int) -> str:
    """Return the text, or its head and tail with a mark between, at most `max_chars` characters long."""
    if len(text) <= max_chars:
        return text
    mark = "\n...\n"
    head = (max_chars - len(mark)) // 2
    tail = max_chars - len(mark) - head
    return text[:head] + mark + text[len(text) - tail :]


def turn_texts(segments: Sequence[Segment], codec: Codec) -> list[str]:
    """Return the policy's text of every turn; a turn may span chunks, so its tokens are joined before decoding."""
    turns: list[list[int]] = [[]]
    for segment in segments:
        if segment.author is Author.TOOL:
            turns.append([])
        else:
            turns[-1].extend(segment.token_ids)
    return [codec.decode(tokens, skip_special_tokens=True) for tokens in turns]
