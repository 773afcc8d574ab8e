"""Whole answers: labels, equations, lists, points, matrices and sets on top of scalar equality. Knows no completion."""

from edge_rl.scoring.expressions.equality import (
    Outcome,
    expand_plus_minus,
    same_elements,
    same_in_order,
    same_scalar,
    without_units,
)
from edge_rl.scoring.expressions.exact import constant_ratio, rational_value, same_identity
from edge_rl.scoring.expressions.intervals import same_intervals, to_intervals
from edge_rl.scoring.expressions.nodes import ExpressionError, Node

LABELS = frozenset(["symbol", "call", "text"])
SETS_OF_NUMBERS = frozenset(["union", "intersection", "difference", "builder", "chain", "named"])
CONTAINERS = frozenset(["group", "set", "list", "matrix", "ratio", "relation", "text"]) | SETS_OF_NUMBERS


def same_answer(gold: Node, given: Node) -> Outcome:
    """Return whether a given answer equals the gold answer, with the conventions of textbooks for labels and units."""
    try:
        return _same(gold, given)
    except ExpressionError:
        return Outcome(False, "no_value")


def drop_label(node: Node) -> Node:
    """Return the value that `x = 5`, `f(x) = 5` or the chain `2 + 3 = 5` ends with; other trees unchanged."""
    if node.op == "chain" and all(relation.name == "=" for relation in node.args):
        node = node.args[-1]
    if node.op != "relation" or node.name != "=":
        return node
    left, right = node.args
    is_point = left.op == "group" and all(part.op == "symbol" for part in left.args)
    if left.op in LABELS or is_point or (not left.symbols() and not right.symbols()):
        return right
    if right.op in LABELS and not left.symbols():
        return left
    return right if same_identity(left, right) else node


def elements(node: Node) -> tuple[Node, ...]:
    """Return the elements that a set or a list of values stands for; a single value is one element."""
    node = drop_membership(node)
    if node.op == "named" and node.name == "empty":
        return ()
    if node.op == "union":
        return elements(node.args[0]) + elements(node.args[1])
    items = node.args if node.op in ("set", "list") else (node,)
    plain = [drop_label(drop_membership(item)) for item in items]
    nested = [part for item in plain for part in (item.args if item.op in ("set", "list") else (item,))]
    return tuple(value for item in nested for value in expand_plus_minus(item))


def drop_membership(node: Node) -> Node:
    r"""Return the set of `x \in {...}` or `S = {...}`; other trees unchanged."""
    if (
        node.op == "relation"
        and node.name in ("in", "=")
        and node.args[0].op in LABELS
        and node.args[1].op in ("set", "named")
    ):
        return node.args[1]
    return node


def _same(gold: Node, given: Node) -> Outcome:
    if gold == given:
        return Outcome(True, "same_form")
    if _is_set_of_numbers(gold) or (_is_set_of_numbers(given) and gold.op in ("group", "relation")):
        return _same_set_of_numbers(gold, given)
    if gold.op == "relation":
        return _same_relation(gold, given)
    given = drop_label(given)
    stripped = without_units(gold, given)
    if stripped is None:
        return Outcome(False, "unit")
    gold, given = stripped
    if gold.op == "list" or len(expand_plus_minus(gold)) == 2:
        if given.op not in ("list", "set") and len(expand_plus_minus(given)) == 1:
            return Outcome(False, "length")
        return same_elements(elements(gold), elements(given), _same)
    if gold.op == "set":
        return (
            same_elements(elements(gold), elements(given), _same)
            if given.op in ("set", "list")
            else Outcome(False, "form")
        )
    if gold.op in ("group", "matrix"):
        is_alike = gold.op == given.op and gold.name == given.name
        return same_in_order(gold.args, given.args, _same) if is_alike else Outcome(False, "form")
    if gold.op == "ratio":
        return _same_ratio(gold, given)
    if gold.op in CONTAINERS or given.op in CONTAINERS or len(expand_plus_minus(given)) == 2:
        return Outcome(False, "form")
    return same_scalar(gold, given)


def _same_relation(gold: Node, given: Node) -> Outcome:
    if gold.name != "=":
        return _same_inequality(gold, given)
    left, right = gold.args
    if given.op == "chain" and all(relation.name == "=" for relation in given.args):
        given = (
            given.args[-1] if given.args[0].args[0] != left else Node("relation", "=", (left, given.args[-1].args[1]))
        )
    if given.op != "relation" or given.name != "=":
        return _same(right, given) if left.op in LABELS else Outcome(False, "form")
    if left == given.args[0]:
        return _same(right, given.args[1])
    if right.op in CONTAINERS or given.args[1].op in CONTAINERS or left.op == "call" or given.args[0].op == "call":
        return Outcome(False, "form")
    if gold.symbols() != given.symbols():
        return Outcome(False, "symbols")
    differences = [Node("add", args=(node.args[0], Node("neg", args=(node.args[1],)))) for node in (gold, given)]
    ratio = constant_ratio(*differences)
    return Outcome(bool(ratio), "equation")


def _same_inequality(gold: Node, given: Node) -> Outcome:
    if given.op != "relation" or len(gold.symbols()) > 1:
        if given.op == "relation" and given.name == gold.name:
            return same_in_order(gold.args, given.args, same_scalar)
        return Outcome(False, "form")
    if gold.symbols() != given.symbols():
        return Outcome(False, "symbols")
    return _same_set_of_numbers(gold, given)


def _same_set_of_numbers(gold: Node, given: Node) -> Outcome:
    if gold.op == "named" and given.op == "named":
        return Outcome(gold.name == given.name, "same_form")
    return same_intervals(to_intervals(gold), to_intervals(given))


def _is_set_of_numbers(node: Node) -> bool:
    if node.op == "relation":
        return node.name == "in" or (node.name not in ("=",) and len(node.symbols()) == 1)
    return node.op in SETS_OF_NUMBERS


def _same_ratio(gold: Node, given: Node) -> Outcome:
    if given.op != "ratio" or len(gold.args) != len(given.args):
        return Outcome(False, "form")
    values = [[rational_value(part) for part in node.args] for node in (gold, given)]
    first, second = ([value for value in row if value is not None] for row in values)
    if len(first) != len(gold.args) or len(second) != len(gold.args):
        return same_in_order(gold.args, given.args, same_scalar)
    # 3:4 = 6:8, whatever the order of magnitude; all cross products agree.
    equal = all(first[0] * second[place] == second[0] * first[place] for place in range(len(first))) and (
        first[0] != 0 and second[0] != 0
    )
    return Outcome(equal or first == second, "ratio")
