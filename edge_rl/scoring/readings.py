"""A commitment as mathematical trees. Knows no gold and no kind of answer.

A statement in prose is read only where it names one value; a sentence that doubts, asks or addresses a machine names none.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from edge_rl.scoring.expressions.nodes import ExpressionError, Node
from edge_rl.scoring.expressions.parser import parse
from edge_rl.scoring.extraction import Commitment
from edge_rl.scoring.statements import Statement, unmark

MATH_SPAN = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
MARKED_SPAN = re.compile(r"\*\*([^*\n]+)\*\*|`([^`\n]+)`")
NUMBER = re.compile(r"(?<![A-Za-z0-9_.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:\s*/\s*\d+)?%?(?![A-Za-z0-9_])")
SHOWN = 60


@dataclass(frozen=True, slots=True)
class Reading:
    """The trees of the offered values, in order; `problem` says why there is none."""

    nodes: tuple[Node, ...]
    problem: str = ""


def read(commitment: Commitment, *, thousands: bool = True) -> Reading:
    """Return the offered values as trees; all of them must be readable."""
    if commitment.statement is not None:
        return _read_statement(commitment.statement, thousands)
    if not commitment.values:
        return Reading((), commitment.reason)
    nodes: list[Node] = []
    for value in commitment.values:
        node = parse_or_none(value, thousands=thousands) or parse_or_none(unmark(value), thousands=thousands)
        if node is None:
            return Reading((), f"{value[:SHOWN]!r} is no mathematics")
        nodes.append(node)
    return Reading(tuple(nodes))


@lru_cache(maxsize=4096)
def parse_or_none(text: str, *, thousands: bool = True) -> Node | None:
    """Return the tree of a text, None where it is no mathematics. Answers repeat inside a group, so results are kept."""
    try:
        return parse(text, thousands=thousands)
    except ExpressionError:
        return None


def _read_statement(statement: Statement, thousands: bool) -> Reading:
    texts = [statement.sentence] if statement.is_doubtful else [statement.sentence, statement.value or ""]
    for text in texts:
        node = parse_or_none(text, thousands=thousands) if text else None
        if node is not None and not _is_prose(node):
            return Reading((node,))
    if statement.is_doubtful:
        return Reading((), "no commitment in the closing sentence")
    for text in (statement.value or "", statement.sentence):
        node = _only_value(text, thousands)
        if node is not None:
            return Reading((node,))
    return Reading((), f"no single value in {statement.sentence[:SHOWN]!r}")


def _only_value(text: str, thousands: bool) -> Node | None:
    """Return the one value that a piece of prose marks or mentions; None for none or several."""
    for pattern in (MATH_SPAN, MARKED_SPAN):
        spans = {
            next(group for group in match.groups() if group is not None).strip() for match in pattern.finditer(text)
        }
        if len(spans) == 1:
            return parse_or_none(spans.pop(), thousands=thousands)
        if spans:
            return None
    numbers = {match.group().replace(" ", "") for match in NUMBER.finditer(text)}
    if len(numbers) != 1 or not re.search(r"[A-Za-z\u4e00-\u9fff]", text) or re.search(r"[={}\\^\"|]", text):
        return None
    return parse_or_none(numbers.pop(), thousands=thousands)


def _is_prose(node: Node) -> bool:
    return node.op == "symbol" and len(node.name) > 3
