"""Sets of real numbers as unions of intervals: brackets of both kinds, inequalities, set operations. Knows no text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from edge_rl.scoring.expressions.equality import Outcome, expand_plus_minus, same_scalar
from edge_rl.scoring.expressions.exact import rational_value
from edge_rl.scoring.expressions.nodes import ExpressionError, Node, number
from edge_rl.scoring.expressions.probing import constant_value
from edge_rl.scoring.expressions.vocabulary import FLIPPED

MAX_PIECES = 40
INFINITY = Node("constant", "infinity")


@dataclass(frozen=True, slots=True)
class End:
    """One end of an interval; its place on the line decides order, its expression decides equality."""

    node: Node
    place: Any
    closed: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers between two ends."""

    low: End
    high: End


def same_intervals(gold: Sequence[Interval], given: Sequence[Interval]) -> Outcome:
    """Return whether two unions, as `to_intervals` gives them, are the same set."""
    if len(gold) != len(given):
        return Outcome(False, "interval")
    undecided = False
    for first, second in zip(gold, given, strict=True):
        for one, other in ((first.low, second.low), (first.high, second.high)):
            if one.closed != other.closed:
                return Outcome(False, "interval")
            equal = same_scalar(one.node, other.node).equal
            if equal is False:
                return Outcome(False, "interval")
            undecided = undecided or equal is None
    return Outcome(None if undecided else True, "interval")


def to_intervals(node: Node) -> list[Interval]:
    """Return the set that a tree describes: sorted, disjoint, with touching pieces merged.

    Raises: ExpressionError if it describes no set of real numbers.
    """
    return _merge(_pieces(node))


def _pieces(node: Node) -> list[Interval]:
    if node.op == "group" and len(node.args) == 2 and len(node.name) == 2:
        return _bracket(node)
    if node.op == "named" and node.name in ("R", "empty"):
        return _everything() if node.name == "R" else []
    if node.op == "set":
        return [_point(value) for element in node.args for value in expand_plus_minus(element)]
    if node.op == "union":
        return to_intervals(node.args[0]) + to_intervals(node.args[1])
    if node.op == "intersection":
        return _intersect(to_intervals(node.args[0]), to_intervals(node.args[1]))
    if node.op == "difference" or (node.op == "add" and node.args[1].op == "neg"):
        removed = node.args[1] if node.op == "difference" else node.args[1].args[0]
        return _intersect(to_intervals(node.args[0]), _complement(to_intervals(removed)))
    if node.op == "builder":
        return to_intervals(node.args[0])
    if node.op == "chain":
        pieces = _everything()
        for relation in node.args:
            pieces = _intersect(pieces, to_intervals(relation))
        return pieces
    if node.op == "list":
        return _listed(node)
    if node.op == "relation":
        return _relation(node)
    raise ExpressionError(f"{node.op} is no set of real numbers")


def _listed(node: Node) -> list[Interval]:
    # "x > 2 and x < 5" narrows, "x < -1 or x > 1" widens; brackets side by side are always parts of a union.
    parts = [to_intervals(item) for item in node.args]
    if node.name == "and" and all(item.op in ("relation", "chain") for item in node.args):
        pieces = _everything()
        for part in parts:
            pieces = _intersect(pieces, part)
        return pieces
    return [piece for part in parts for piece in part]


def _bracket(node: Node) -> list[Interval]:
    opening, closing = node.name
    low = _end(node.args[0], closed=opening == "[")
    high = _end(node.args[1], closed=closing == "]")
    if low.place > high.place or (low.place == high.place and not (low.closed and high.closed)):
        raise ExpressionError("an interval with its ends exchanged")
    return [Interval(low, high)]


def _relation(node: Node) -> list[Interval]:
    left, right = node.args
    if node.name == "in" or (
        node.name == "=" and right.op in ("group", "union", "set", "named", "difference", "intersection")
    ):
        if left.op not in ("symbol", "call"):
            raise ExpressionError("a membership of something that is no variable")
        return _pieces(right)
    if node.name not in FLIPPED:
        raise ExpressionError(f"{node.name} is no inequality")
    if len(node.symbols()) != 1:
        raise ExpressionError("an inequality of several variables")
    if left.op == "abs" or right.op == "abs":
        return _absolute(node)
    slope, bound = _solve(left, right)
    operator = node.name if slope > 0 else FLIPPED[node.name]
    return _half_line(operator, bound)


def _absolute(node: Node) -> list[Interval]:
    left, right = node.args
    operator = node.name
    if right.op == "abs":
        left, right, operator = right, left, FLIPPED[operator]
    inner, negative = left.args[0], Node("neg", args=(right,))
    if right.symbols():
        raise ExpressionError("an absolute value that is no constant")
    if operator in ("<", "<="):
        return _intersect(
            to_intervals(Node("relation", operator, (inner, right))),
            to_intervals(Node("relation", FLIPPED[operator], (inner, negative))),
        )
    outer = to_intervals(Node("relation", operator, (inner, right)))
    mirrored = to_intervals(Node("relation", FLIPPED[operator], (inner, negative)))
    return _intersect(outer, mirrored) if operator == "!=" else outer + mirrored


def _solve(left: Node, right: Node) -> tuple[Fraction, Node]:
    """Return (sign of the slope, root) of the linear left - right."""
    if left.op == "symbol" and not right.symbols():
        return Fraction(1), right
    if right.op == "symbol" and not left.symbols():
        return Fraction(-1), left
    difference = Node("add", args=(left, Node("neg", args=(right,))))
    values = [_at(difference, point) for point in (0, 1, 2)]
    slope = values[1] - values[0]
    if slope == 0 or values[2] - values[1] != slope:
        raise ExpressionError("an inequality that is not linear")
    return slope, number(-values[0] / slope)


def _at(node: Node, point: int) -> Fraction:
    def substitute(part: Node) -> Node:
        if part.op == "symbol":
            return number(point)
        return replace(part, args=tuple(substitute(child) for child in part.args))

    value = rational_value(substitute(node))
    if value is None:
        raise ExpressionError("an inequality that is not linear")
    return value


def _half_line(operator: str, bound: Node) -> list[Interval]:
    if operator == "=":
        return [_point(bound)]
    if operator == "!=":
        return _complement([_point(bound)])
    end = _end(bound, closed=operator in ("<=", ">="))
    if abs(end.place) == math.inf:
        raise ExpressionError("an inequality against infinity")
    return [Interval(_minus_infinity(), end) if operator in ("<", "<=") else Interval(end, _plus_infinity())]


def _end(node: Node, *, closed: bool) -> End:
    if closed and any(child == INFINITY for child in node.walk()):
        raise ExpressionError("a closed end at infinity")
    if node == INFINITY:
        return _plus_infinity()
    if node.op == "neg" and node.args[0] == INFINITY:
        return _minus_infinity()
    while node.op in ("unit", "degree"):
        node = node.args[0]
    return End(node, constant_value(node), closed)


def _point(node: Node) -> Interval:
    end = _end(node, closed=True)
    if not end.closed:
        raise ExpressionError("infinity is no number")
    return Interval(end, end)


def _plus_infinity() -> End:
    return End(INFINITY, math.inf, False)


def _minus_infinity() -> End:
    return End(Node("neg", args=(INFINITY,)), -math.inf, False)


def _everything() -> list[Interval]:
    return [Interval(_minus_infinity(), _plus_infinity())]


def _merge(pieces: list[Interval]) -> list[Interval]:
    if len(pieces) > MAX_PIECES:
        raise ExpressionError("a union of too many pieces")
    merged: list[Interval] = []
    for piece in sorted(pieces, key=lambda item: (item.low.place, not item.low.closed)):
        if merged and _touches(merged[-1].high, piece.low):
            last = merged[-1]
            high = max(last.high, piece.high, key=lambda end: (end.place, end.closed))
            merged[-1] = Interval(last.low, high)
        else:
            merged.append(piece)
    return merged


def _touches(high: End, low: End) -> bool:
    return low.place < high.place or (low.place == high.place and (low.closed or high.closed))


def _intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
    pieces: list[Interval] = []
    for first in left:
        for second in right:
            low = max(first.low, second.low, key=lambda end: (end.place, not end.closed))
            high = min(first.high, second.high, key=lambda end: (end.place, end.closed))
            if low.place < high.place or (low.place == high.place and low.closed and high.closed):
                pieces.append(Interval(low, high))
    return pieces


def _complement(pieces: list[Interval]) -> list[Interval]:
    gaps: list[Interval] = []
    low = _minus_infinity()
    for piece in pieces:
        high = replace(piece.low, closed=not piece.low.closed)
        if piece.low.place > -math.inf and (
            low.place < high.place or (low.place == high.place and low.closed and high.closed)
        ):
            gaps.append(Interval(low, high))
        low = replace(piece.high, closed=not piece.high.closed)
    if low.place < math.inf:
        gaps.append(Interval(low, _plus_infinity()))
    return gaps
