"""Values of trees without rounding: fractions, and identities of rational functions modulo a prime. Knows no float.

Every operation has a bound on its result, so towers of powers and iterated factorials end at once.
"""

import hashlib
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, cast

from edge_rl.scoring.expressions.nodes import ExpressionError, Node, encode

MAX_BITS = 200_000
MAX_FACTORIAL = 5_000
PRIMES = (2**127 - 1, 2**107 - 1)
"""Mersenne primes; two, so that an expression that is a multiple of one is still told apart."""
NUM_POINTS = 3


class TooLargeError(ExpressionError):
    """A value beyond the bounds."""


def rational_value(node: Node) -> Fraction | None:
    """Return the exact value of a tree; None where it is no rational number (symbols, pi, an irrational root).

    Raises: TooLargeError if a value leaves the bounds; ExpressionError for a division by zero.
    """
    if node.op == "number":
        return node.value
    if node.op == "based":
        return based_value(node)
    if node.op not in OPERATIONS:
        return None
    values: list[Fraction] = []
    for child in node.args:
        value = rational_value(child)
        if value is None:
            return None
        values.append(value)
    try:
        result = OPERATIONS[node.op](*values)
    except ZeroDivisionError:
        raise ExpressionError("a division by zero") from None
    except TypeError:
        return None
    if result is not None:
        check_size(result)
    return result


def check_size(value: Fraction) -> None:
    """Raise TooLargeError for a number of more than MAX_BITS bits."""
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooLargeError("a number too large to work with")


def based_value(node: Node) -> Fraction:
    """Return the value of digits in another base, such as 1011_2.

    Raises: ExpressionError if a digit does not belong to the base.
    """
    base = int(node.args[0].value)
    if not 2 <= base <= 36 or len(node.name) > 1_000:
        raise ExpressionError("a base out of range")
    try:
        return Fraction(int(node.name, base))
    except ValueError:
        raise ExpressionError(f"digits that base {base} does not have") from None


def power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return base ** exponent; None where it is irrational or no real number."""
    if exponent.denominator != 1:
        root = nth_root(base, exponent.denominator) if exponent.denominator <= 64 else None
        return None if root is None else power(root, Fraction(exponent.numerator))
    if base == 0 and exponent <= 0:
        raise ExpressionError("zero to a power that is not positive")
    if base in (0, 1) or exponent == 0:
        return base if exponent else Fraction(1)
    if base == -1:
        return Fraction(-1 if exponent.numerator % 2 else 1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent.numerator) > MAX_BITS:
        raise TooLargeError("a power too large to work with")
    return base ** int(exponent)


def nth_root(value: Fraction, index: int | Fraction) -> Fraction | None:
    """Return the real root where it is rational; None where it is not."""
    index = Fraction(index)
    if index.denominator != 1 or not 1 <= index <= 64:
        return None
    if value < 0:
        root = nth_root(-value, index) if index.numerator % 2 else None
        return None if root is None else -root
    top, bottom = _integer_root(value.numerator, int(index)), _integer_root(value.denominator, int(index))
    return None if top is None or bottom is None else Fraction(top, bottom)


def same_identity(left: Node, right: Node) -> bool | None:
    """Return whether two trees are the same rational function of their symbols and irrational atoms.

    Both are evaluated at random points modulo two primes (Schwartz-Zippel: an error has a chance below 1e-30). True is proof
    whatever the atoms are. False is proof only where there are no atoms (sqrt(2), pi, sin x), which may depend on each
    other; with atoms the answer is then None. None also where a tree holds something else.
    """
    atoms: set[str] = set()
    for point in range(NUM_POINTS):
        for prime in PRIMES:
            try:
                first, second = (_modular(node, prime, point, atoms) for node in (left, right))
            except (ExpressionError, ZeroDivisionError):
                return None
            if first != second:
                return None if atoms else False
    return True


def constant_ratio(left: Node, right: Node) -> bool | None:
    """Return whether left / right is one constant other than zero, so that left = 0 and right = 0 are one equation.

    None where a tree is no rational function of its symbols and atoms.
    """
    for prime in PRIMES:
        ratios: set[int] = set()
        for point in range(NUM_POINTS):
            try:
                first, second = (_modular(node, prime, point, set()) for node in (left, right))
            except (ExpressionError, ZeroDivisionError):
                return None
            if first == 0 or second == 0:
                return False
            ratios.add(first * pow(second, -1, prime) % prime)
        if len(ratios) != 1:
            return False
    return True


def _modular(node: Node, prime: int, point: int, atoms: set[str]) -> int:
    if node.op == "number":
        return _residue(node.value, prime)
    if node.op == "symbol":
        return _random_residue(f"symbol {node.name}", prime, point)
    if node.op in ("add", "mul", "div", "neg"):
        values = [_modular(child, prime, point, atoms) for child in node.args]
        return MODULAR[node.op](values, prime)
    if node.op == "pow":
        exponent = rational_value(node.args[1])
        if exponent is not None and exponent.denominator == 1:
            base = _modular(node.args[0], prime, point, atoms)
            if base == 0 and exponent <= 0:
                raise ZeroDivisionError
            return pow(base, int(exponent), prime)
    if node.op in ("pow", "root", "call", "constant", "abs"):
        key = hashlib.blake2b(repr(encode(canonical(node))).encode()).hexdigest()
        atoms.add(key)
        return _random_residue(key, prime, point)
    value = rational_value(node)
    if value is None:
        raise ExpressionError(f"{node.op} is no rational function")
    return _residue(value, prime)


def canonical(node: Node) -> Node:
    """Return the tree with rational parts reduced to numbers and the operands of sums and products in one order."""
    value = rational_value(node)
    if value is not None:
        return Node("number", value=value)
    args = tuple(canonical(child) for child in node.args)
    if node.op in ("add", "mul"):
        args = tuple(sorted(args, key=repr))
    return Node(node.op, node.name, args, node.value)


def _residue(value: Fraction, prime: int) -> int:
    if value.denominator % prime == 0:
        raise ZeroDivisionError
    return value.numerator * pow(value.denominator, -1, prime) % prime


def _random_residue(name: str, prime: int, point: int) -> int:
    digest = hashlib.blake2b(f"{name} {prime} {point}".encode(), digest_size=24).digest()
    return int.from_bytes(digest, "big") % prime


def _divide_modulo(values: list[int], prime: int) -> int:
    if values[1] == 0:
        raise ZeroDivisionError
    return values[0] * pow(values[1], -1, prime) % prime


def _integer_root(value: int, index: int) -> int | None:
    if value < 2 or index == 1:
        return value
    if index == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    low, high = 1, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= value else (low, middle - 1)
    return low if low**index == value else None


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise ExpressionError("a factorial of something that is no natural number")
    if value > MAX_FACTORIAL:
        raise TooLargeError("a factorial too large to work with")
    return Fraction(math.factorial(int(value)))


def _binomial(top: Fraction, bottom: Fraction) -> Fraction:
    if top.denominator != 1 or bottom.denominator != 1 or top < 0 or bottom < 0:
        raise ExpressionError("a binomial of something that is no natural number")
    if top > MAX_FACTORIAL:
        raise TooLargeError("a binomial too large to work with")
    return Fraction(math.comb(int(top), int(bottom)))


def _floor(value: Fraction) -> Fraction:
    return Fraction(math.floor(value))


def _ceil(value: Fraction) -> Fraction:
    return Fraction(math.ceil(value))


OPERATIONS: Mapping[str, Callable[..., Fraction | None]] = {
    "add": cast("Any", operator.add),
    "mul": cast("Any", operator.mul),
    "div": cast("Any", operator.truediv),
    "neg": cast("Any", operator.neg),
    "pow": power,
    "root": nth_root,
    "abs": cast("Any", abs),
    "floor": _floor,
    "ceil": _ceil,
    "factorial": _factorial,
    "binom": _binomial,
}
MODULAR: Mapping[str, Callable[[list[int], int], int]] = {
    "add": lambda values, prime: sum(values) % prime,
    "mul": lambda values, prime: math.prod(values) % prime,
    "div": _divide_modulo,
    "neg": lambda values, prime: -values[0] % prime,
}
