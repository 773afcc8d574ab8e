"""The tree of a mathematical expression: one record, a closed list of operations. Knows no notation."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_DEPTH = 60
MAX_NODES = 2_000


class ExpressionError(ValueError):
    """Text that cannot be read as mathematics, or a value beyond the bounds."""


@dataclass(frozen=True, slots=True)
class Node:
    r"""One operation with its operands.

    op        name                   operands
    number    -                      - (see value)
    symbol    x, a_1, \theta         -
    constant  pi, e, i, infinity     -
    add, mul  -                      two or more
    div, pow  -                      two
    root      -                      radicand, index
    neg, abs, floor, ceil, factorial, degree   one
    call      sin, log, f, ...       arguments
    binom     -                      two
    pm        -                      [first,] second: first +- second
    unit      cm, degrees, ...       the quantity
    group     opening and closing bracket, "()" "[)" "][" ...   items
    set       -                      items
    list      -                      items (a bare comma list, or several values joined by "and" / "or")
    relation  one operator           left, right
    chain     -                      relations joined by and (2 < x < 5)
    union, intersection, difference  two
    named     R, Z, Q, N, C, empty   -
    builder   -                      condition of {x | ...}
    matrix    -                      rows, each a group
    ratio     -                      parts
    based     -                      number in another base: digits in `name`, the base as operand
    text      the words              -
    """

    op: str
    name: str = ""
    args: tuple["Node", ...] = ()
    value: Fraction = Fraction(0)

    def walk(self) -> Iterator["Node"]:
        """Yield this node and everything below it."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.args)

    def symbols(self) -> set[str]:
        """Return the names of the free symbols."""
        return {node.name for node in self.walk() if node.op == "symbol"}


def number(value: Fraction | int) -> Node:
    """Return a number."""
    return Node("number", value=Fraction(value))


def encode(node: Node) -> list[object]:
    """Return a tree of plain lists for a pipe; numbers in hexadecimal, which has no length limit."""
    value = f"{node.value.numerator:x}/{node.value.denominator:x}"
    return [node.op, node.name, value, [encode(child) for child in node.args]]


def decode(data: list[object]) -> Node:
    """Return the tree that `encode` wrote."""
    op, name, value, args = data
    assert isinstance(value, str) and isinstance(args, list)
    top, bottom = value.split("/")
    return Node(str(op), str(name), tuple(decode(child) for child in args), Fraction(int(top, 16), int(bottom, 16)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
