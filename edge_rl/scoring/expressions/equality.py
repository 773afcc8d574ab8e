"""Whether two trees are the same answer. Knows no text and no completion.

Routes, in order: the same form; exact numbers; an identity of rational functions; digits, which can only refute; a computer
algebra system in a process that can be killed. The route that decided is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_rl.scoring.expressions.exact import TooLargeError, canonical, rational_value, same_identity
from edge_rl.scoring.expressions.nodes import ExpressionError, Node
from edge_rl.scoring.expressions.probing import probe
from edge_rl.scoring.pool import prove_equal

MAX_ELEMENTS = 60
PLURAL_EXCEPTIONS = frozenset(["s", "inches", "feet"])
SAME_UNITS = {
    "inches": "inch", "in": "inch", "feet": "foot", "ft": "foot", "centimeters": "cm", "centimetres": "cm", "centimeter": "cm",
    "centimetre": "cm", "meters": "m", "metres": "m", "meter": "m", "metre": "m", "kilometers": "km", "kilometres": "km",
    "kilometer": "km", "seconds": "s", "second": "s", "sec": "s", "minutes": "min", "minute": "min", "hours": "h", "hour": "h",
    "hr": "h", "hrs": "h", "grams": "g", "gram": "g", "kilograms": "kg", "kilogram": "kg", "sq": "square", "usd": "dollar",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether two answers are equal (None: it could not be decided), and which route said so."""

    equal: bool | None
    route: str


def same_scalar(gold: Node, given: Node) -> Outcome:
    """Return whether two expressions have the same value for all values of their symbols."""
    if gold == given:
        return Outcome(True, "same_form")
    try:
        values = [rational_value(node) for node in (gold, given)]
        if values[0] is not None and values[1] is not None:
            return Outcome(values[0] == values[1], "exact_number")
        if canonical(gold) == canonical(given):
            return Outcome(True, "same_form")
    except TooLargeError:
        return Outcome(False, "too_large")
    except ExpressionError:
        return Outcome(False, "no_value")
    if _has_infinity(gold) or _has_infinity(given):
        return Outcome(False, "infinity")
    identity = same_identity(gold, given)
    if identity is not None:
        return Outcome(identity, "identity")
    agrees = probe(gold, given)
    if agrees is False:
        return Outcome(False, "digits")
    if agrees is None and probe(gold, gold) and not probe(given, given):
        # The gold answer has a value and the completion's none within the bounds: a tower of powers, a hidden zero.
        return Outcome(False, "no_value")
    proof = prove_equal(gold, given)
    if proof["sympy"] is not None:
        return Outcome(proof["sympy"], "symbolic")
    # 60 digits that agree, or an algebra that rounds, prove nothing alone; for short expressions both together do.
    if agrees and proof["math_verify"] and _is_tame(gold) and _is_tame(given):
        return Outcome(True, "digits_and_math_verify")
    return Outcome(None, "undecided")


def same_elements(gold: Sequence[Node], given: Sequence[Node], same: Callable[[Node, Node], Outcome]) -> Outcome:
    """Return whether two collections have the same elements, order and repetition aside."""
    if max(len(gold), len(given)) > MAX_ELEMENTS:
        return Outcome(False, "too_many_elements")
    rows = [[same(first, second).equal for second in given] for first in gold]
    columns = [[row[place] for row in rows] for place in range(len(given))]
    lines = rows + columns
    if any(True not in line and None not in line for line in lines):
        return Outcome(False, "elements")
    return Outcome(True if all(True in line for line in lines) else None, "elements")


def same_in_order(gold: Sequence[Node], given: Sequence[Node], same: Callable[[Node, Node], Outcome]) -> Outcome:
    """Return whether two sequences are equal place by place."""
    if len(gold) != len(given):
        return Outcome(False, "length")
    outcomes = [same(first, second) for first, second in zip(gold, given, strict=True)]
    if any(outcome.equal is False for outcome in outcomes):
        return Outcome(False, "in_order")
    return Outcome(True if all(outcome.equal for outcome in outcomes) else None, "in_order")


def without_units(gold: Node, given: Node) -> tuple[Node, Node] | None:
    """Return both without units; None if both have one and they differ. A unit counts only where gold has one too."""
    if gold.op == "unit" and given.op == "unit" and unit_name(gold.name) != unit_name(given.name):
        return None
    return strip_unit(gold), strip_unit(given)


def strip_unit(node: Node) -> Node:
    """Return a quantity without its unit or degree sign."""
    while node.op in ("unit", "degree"):
        node = node.args[0]
    if node.op == "neg" and node.args[0].op in ("unit", "degree"):
        return Node("neg", args=(strip_unit(node.args[0]),))
    return node


def unit_name(text: str) -> str:
    """Return one spelling for a unit: singular, lower case, the usual short forms, squares as an exponent."""
    words = [SAME_UNITS.get(word, word) for word in text.lower().replace("^ ", "^").split()]
    words = [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]
    for prefix, exponent in (("square", "^2"), ("cubic", "^3")):
        if len(words) == 2 and words[0] == prefix:
            words = [words[1], exponent]
    return "".join(words)


def expand_plus_minus(node: Node) -> tuple[Node, ...]:
    """Return the two values of an expression with a plus-minus sign; the expression itself where there is none."""
    if not any(child.op == "pm" for child in node.walk()):
        return (node,)
    return (_resolve(node, plus=True), _resolve(node, plus=False))


def _resolve(node: Node, *, plus: bool) -> Node:
    args = tuple(_resolve(child, plus=plus) for child in node.args)
    if node.op != "pm":
        return Node(node.op, node.name, args, node.value)
    last = args[-1] if plus else Node("neg", args=(args[-1],))
    return last if len(args) == 1 else Node("add", args=(args[0], last))


def _has_infinity(node: Node) -> bool:
    return any(child.op == "constant" and child.name == "infinity" for child in node.walk())


def _is_tame(node: Node) -> bool:
    """Whether agreement in 60 digits cannot be a coincidence: few and short constants, no huge or tiny parts."""
    nodes = list(node.walk())
    bits = sum(child.value.numerator.bit_length() + child.value.denominator.bit_length() for child in nodes)
    return len(nodes) <= 40 and bits <= 160
