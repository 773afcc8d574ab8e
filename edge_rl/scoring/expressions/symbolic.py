"""Trees to sympy expressions, and what sympy and math-verify say of their equality. Runs in a worker child only.

Neither library ever sees text: their own parsers call eval on it (sympy's parse_expr, which math-verify uses too). The
tree comes from `parser`, whose list of operations is closed.
"""

import importlib
import logging
import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

from edge_rl.scoring.expressions.nodes import ExpressionError, Node, decode

# Neither has types.
sympy: Any = importlib.import_module("sympy")
verify: Any = importlib.import_module("math_verify").verify
MAX_NODES = 400


def prove(payload: Any) -> dict[str, bool | None]:
    """Return what sympy and math-verify say of two encoded trees; None where one cannot tell."""
    left, right = (decode(part) for part in payload)
    if sum(1 for node in (left, right) for _ in node.walk()) > MAX_NODES:
        return {"sympy": None, "math_verify": None}
    try:
        first, second = to_sympy(left), to_sympy(right)
    except ExpressionError:
        return {"sympy": None, "math_verify": None}
    answer = _sympy_says(first, second)
    # Asked only where sympy alone cannot tell: its comparison rounds, so it is a second opinion and no proof.
    opinion = bool(verify(first, second, timeout_seconds=None)) if answer is None else None
    return {"sympy": answer, "math_verify": opinion}


def to_sympy(node: Node) -> Any:
    """Return the sympy expression of a tree.

    Raises: ExpressionError for an operation that has none.
    """
    if node.op == "number":
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.op == "symbol":
        return sympy.Symbol(node.name)
    if node.op == "constant":
        return CONSTANTS[node.name]
    args = [to_sympy(child) for child in node.args]
    if node.op == "call":
        if node.name == "log":
            return sympy.log(args[0], args[1] if len(args) == 2 else 10)
        if node.name in CALLS and len(args) == 1:
            is_angle = node.args[0].op == "degree"
            return CALLS[node.name](args[0] * sympy.pi / 180 if is_angle else args[0])
        if len(node.name) == 1:
            return sympy.Function(node.name)(*args)
    if node.op in OPERATIONS:
        return OPERATIONS[node.op](*args)
    raise ExpressionError(f"{node.op} has no sympy form")


def warm_up() -> None:
    """Load what the first proof would load, so that forked children start warm."""
    # It warns at every call that its own time-out is off; ours is the process that calls it.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    x = sympy.Symbol("x")
    _sympy_says(sympy.sin(2 * x), 2 * sympy.sin(x) * sympy.cos(x))
    verify(sympy.sqrt(2) / 2, 1 / sympy.sqrt(2), timeout_seconds=None)


def _sympy_says(left: Any, right: Any) -> bool | None:
    difference = left - right
    if difference == 0 or sympy.expand(difference) == 0:
        return True
    simple = sympy.simplify(difference)
    if simple.is_zero is not None:
        return bool(simple.is_zero)
    return simple.equals(0)


def _root(value: Any, index: Any) -> Any:
    return sympy.real_root(value, index) if value.is_negative and index.is_odd else sympy.root(value, index)


def _log10(value: Any) -> Any:
    return sympy.log(value, 10)


def _same(value: Any) -> Any:
    return value


CONSTANTS: Mapping[str, Any] = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
CALLS: Mapping[str, Callable[..., Any]] = {
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "cot": sympy.cot,
    "sec": sympy.sec,
    "csc": sympy.csc,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "arccot": sympy.acot,
    "arcsec": sympy.asec,
    "arccsc": sympy.acsc,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "coth": sympy.coth,
    "sech": sympy.sech,
    "csch": sympy.csch,
    "ln": sympy.log,
    "lg": _log10,
    "exp": sympy.exp,
}
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": cast("Any", operator.add),
    "mul": cast("Any", operator.mul),
    "div": cast("Any", operator.truediv),
    "neg": cast("Any", operator.neg),
    "pow": cast("Any", operator.pow),
    "root": _root,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceil": sympy.ceiling,
    "factorial": sympy.factorial,
    "binom": sympy.binomial,
    "degree": _same,
}
