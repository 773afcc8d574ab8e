"""Trees at random points with 120 digits: proof that two expressions differ, never proof that they are equal.

Knows no algebra. Values are kept within bounds, so a point that would need a huge number is left out.
"""

import hashlib
import importlib
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from edge_rl.scoring.expressions.nodes import ExpressionError, Node

mpmath: Any = importlib.import_module("mpmath")  # it has no types
DIGITS = 120
LARGEST = mpmath.mpf(10) ** 50
SMALLEST = mpmath.mpf(10) ** -50
AGREE = mpmath.mpf(10) ** -60
DIFFER = mpmath.mpf(10) ** -25
NUM_POINTS = 8
LOCK = threading.Lock()
"""mpmath changes the precision of its context while it computes, so only one thread may use it."""


class OutOfBoundsError(ExpressionError):
    """A value too large or too small to compare by digits."""


def probe(left: Node, right: Node) -> bool | None:
    """Return False if the trees differ at some point, True if they agree at all, None if no point tells.

    With symbols half of the points are positive. A point where one side is complex and the other real is left out unless
    nothing else is left: there the two sides only disagree about their domain.
    """
    names = sorted(left.symbols() | right.symbols())
    judged = 0
    with LOCK, mpmath.workdps(DIGITS):
        for point in range(NUM_POINTS if names else 1):
            values = {name: _coordinate(name, point) for name in names}
            try:
                first, second = evaluate(left, values), evaluate(right, values)
            except (ExpressionError, ZeroDivisionError, ValueError, OverflowError):
                continue
            size = max(abs(first), abs(second), mpmath.mpf(1))
            if abs(first - second) > DIFFER * size:
                if names and (_is_complex(first) or _is_complex(second)):
                    continue
                return False
            if abs(first - second) > AGREE * size:
                return None
            judged += 1
    return True if judged >= (NUM_POINTS // 2 if names else 1) else None


def constant_value(node: Node) -> Any:
    """Return the real value of a tree without symbols as an mpf of 120 digits.

    Raises: ExpressionError if it has none within the bounds.
    """
    with LOCK, mpmath.workdps(DIGITS):
        try:
            value = evaluate(node, {})
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise ExpressionError(str(error)) from None
        if _is_complex(value):
            raise ExpressionError("a complex number has no place on the line")
        return mpmath.re(value)


def evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    """Return the value of a tree at a point.

    Raises: OutOfBoundsError beyond 1e50; ExpressionError for an operation that has no value.
    """
    if node.op == "number":
        result = mpmath.mpf(node.value.numerator) / node.value.denominator if _is_small(node) else _refuse()
    elif node.op == "symbol":
        result = values[node.name] if node.name in values else _refuse()
    elif node.op == "constant":
        result = CONSTANT_VALUES[node.name]() if node.name in CONSTANT_VALUES else _refuse()
    elif node.op == "call":
        result = _call(node, values)
    elif node.op in FUNCTIONS_OF_VALUES:
        result = FUNCTIONS_OF_VALUES[node.op](*[evaluate(child, values) for child in node.args])
    else:
        raise ExpressionError(f"{node.op} has no value")
    size = abs(result)
    if not mpmath.isfinite(size) or size > LARGEST or (size and size < SMALLEST):
        raise OutOfBoundsError("a value out of bounds")
    return result


def _call(node: Node, values: Mapping[str, Any]) -> Any:
    arguments = [evaluate(child, values) for child in node.args]
    if node.name == "log" and len(arguments) == 2:
        return mpmath.log(arguments[0]) / mpmath.log(arguments[1])
    if node.name not in CALLS or len(arguments) != 1:
        raise ExpressionError(f"{node.name} has no value")
    if node.name in ("exp", "sinh", "cosh") and abs(mpmath.re(arguments[0])) > 120:
        raise OutOfBoundsError("a value out of bounds")
    # Degrees inside a trigonometric function are an angle, not a unit to be ignored.
    if node.args[0].op == "degree" and node.name in ("sin", "cos", "tan", "cot", "sec", "csc"):
        return CALLS[node.name](arguments[0] * mpmath.pi / 180)
    return CALLS[node.name](arguments[0])


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 2_000 or (base and abs(mpmath.log(abs(base)) * exponent) > 120):
        raise OutOfBoundsError("a value out of bounds")
    return mpmath.power(base, exponent)


def _root(value: Any, index: Any) -> Any:
    if index == 0:
        raise ZeroDivisionError
    # The cube root of a negative number is real here, as it is in school.
    if mpmath.im(value) == 0 and mpmath.re(value) < 0 and index == int(mpmath.re(index)) and int(index) % 2:
        return -_power(-value, 1 / index)
    return _power(value, 1 / index)


def _factorial(value: Any) -> Any:
    if mpmath.im(value) or value != int(mpmath.re(value)) or not 0 <= value <= 20:
        raise OutOfBoundsError("a value out of bounds")
    return mpmath.factorial(value)


def _coordinate(name: str, point: int) -> Any:
    digest = hashlib.blake2b(f"{name} {point}".encode(), digest_size=16).digest()
    fraction = mpmath.mpf(int.from_bytes(digest, "big")) / 2**128
    value = fraction * 3 + mpmath.mpf("0.1")
    return -value if point % 2 else value


def _is_complex(value: Any) -> bool:
    return abs(mpmath.im(value)) > DIFFER * max(abs(value), mpmath.mpf(1))


def _is_small(node: Node) -> bool:
    return node.value.numerator.bit_length() + node.value.denominator.bit_length() < 2_000


def _refuse() -> Any:
    raise OutOfBoundsError("a value out of bounds")


CONSTANT_VALUES: Mapping[str, Callable[[], Any]] = {
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
}
CALLS: Mapping[str, Callable[[Any], Any]] = {
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "cot": mpmath.cot,
    "sec": mpmath.sec,
    "csc": mpmath.csc,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arccot": mpmath.acot,
    "arcsec": mpmath.asec,
    "arccsc": mpmath.acsc,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "coth": mpmath.coth,
    "sech": mpmath.sech,
    "csch": mpmath.csch,
    "ln": mpmath.log,
    "log": mpmath.log10,
    "lg": mpmath.log10,
    "exp": mpmath.exp,
}
FUNCTIONS_OF_VALUES: Mapping[str, Callable[..., Any]] = {
    "add": cast("Any", operator.add),
    "mul": cast("Any", operator.mul),
    "div": cast("Any", operator.truediv),
    "neg": cast("Any", operator.neg),
    "pow": _power,
    "root": _root,
    "abs": cast("Any", abs),
    "floor": mpmath.floor,
    "ceil": mpmath.ceil,
    "factorial": _factorial,
    "degree": cast("Any", operator.pos),
}
