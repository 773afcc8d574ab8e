"""JSON as data: strict reading, equality by value, a subset of JSON Schema. Knows no completion and no verdict."""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from edge_rl.errors import DataError

MAX_TEXT = 50_000
MAX_TRIES = 50
TYPE_NAMES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "int": "integer",
    "str": "string",
    "bool": "boolean",
    "list": "array",
}
"""Names that other collections use for the types of JSON Schema."""
ANNOTATIONS = frozenset(["title", "description", "default", "examples", "$schema", "$id", "format", "optional"])
Holds = Callable[[Any, Any], bool]
Check = Callable[[Any, Any, Mapping[str, Any], str], str | None]
NOTHING = object()


def read_json(text: str) -> Any:
    """Return the value of a JSON text, numbers with a point as Decimal.

    Raises: ValueError for anything else, a repeated key, NaN or Infinity, or nesting too deep to be data.
    """
    try:
        return json.loads(text[:MAX_TEXT], parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def last_json(text: str) -> Any:
    """Return the last JSON object or list in a text; NOTHING where there is none."""
    text = text[-MAX_TEXT:]
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_unique)
    found: Any = NOTHING
    place, tries = 0, 0
    while tries < MAX_TRIES:
        starts = [start for start in (text.find("{", place), text.find("[", place)) if start >= 0]
        if not starts:
            return found
        place = min(starts)
        try:
            found, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place, tries = place + 1, tries + 1
    return found


def same_value(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal: numbers by value, true is not 1, lists in order, objects by key."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float | Decimal) and isinstance(right, int | float | Decimal):
        return _exact(left) == _exact(right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        first, second = cast("Mapping[str, Any]", left), cast("Mapping[str, Any]", right)
        return first.keys() == second.keys() and all(same_value(value, second[key]) for key, value in first.items())
    if isinstance(left, list) and isinstance(right, list):
        ones, others = cast("list[Any]", left), cast("list[Any]", right)
        return len(ones) == len(others) and all(same_value(*pair) for pair in zip(ones, others, strict=True))
    return bool(type(left) is type(right) and left == right)  # pyright: ignore[reportUnknownArgumentType]


def _exact(number: int | float | Decimal) -> int | Decimal:
    # 0.05 read as JSON is a Decimal and read as Python a float; both mean what was written.
    return Decimal(repr(number)) if isinstance(number, float) else number


def schema_problem(value: Any, schema: Mapping[str, Any], where: str = "$") -> str | None:
    """Return what in a value breaks a schema, None if nothing does.

    Raises: DataError for a keyword outside the supported subset, which must not be passed over in silence.
    """
    for keyword, wanted in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword not in CHECKS:
            raise DataError(f"schema keyword {keyword!r} at {where} is not supported; known: {', '.join(CHECKS)}")
        problem = CHECKS[keyword](value, wanted, schema, where)
        if problem is not None:
            return problem
    return None


def _type(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    del schema
    names = cast("list[str]", wanted) if isinstance(wanted, list) else [str(wanted)]
    kinds = [TYPE_NAMES.get(name, name) for name in names]
    if "any" in kinds or any(_is_type(value, kind) for kind in kinds):
        return None
    return f"{where} is no {' or '.join(kinds)}"


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float | Decimal) and value == int(value))
    classes: dict[str, Any] = {
        "object": Mapping, "array": list, "string": str, "number": int | float | Decimal, "null": type(None),
    }  # fmt: skip
    return kind in classes and isinstance(value, classes[kind])


def _properties(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    del schema
    if not isinstance(value, Mapping):
        return None
    members = cast("Mapping[str, Any]", value)
    problems = (schema_problem(members[key], part, f"{where}.{key}") for key, part in wanted.items() if key in members)
    return next((problem for problem in problems if problem is not None), None)


def _required(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    del schema
    missing = [key for key in wanted if isinstance(value, Mapping) and key not in value]
    return f"{where} lacks {missing[0]!r}" if missing else None


def _additional(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    if wanted is not False or not isinstance(value, Mapping):
        return None
    extra = [str(key) for key in cast("Mapping[str, Any]", value) if key not in schema.get("properties", {})]
    return f"{where} has an unknown {extra[0]!r}" if extra else None


def _items(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    del schema
    if not isinstance(value, list):
        return None
    members = cast("list[Any]", value)
    problems = (schema_problem(item, wanted, f"{where}[{place}]") for place, item in enumerate(members))
    return next((problem for problem in problems if problem is not None), None)


def _any_of(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
    del schema
    return (
        None if any(schema_problem(value, part, where) is None for part in wanted) else f"{where} fits no alternative"
    )


def _bound(word: str, holds: Holds) -> Check:
    def check(value: Any, wanted: Any, schema: Mapping[str, Any], where: str) -> str | None:
        del schema
        return None if holds(value, wanted) else f"{where} breaks {word} {wanted}"

    return check


def _size(kind: type, holds: Holds) -> Holds:
    def check(value: Any, wanted: Any) -> bool:
        return not isinstance(value, kind) or holds(len(cast("Sequence[Any]", value)), wanted)

    return check


def _amount(holds: Holds) -> Holds:
    def check(value: Any, wanted: Any) -> bool:
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return not is_number or holds(value, Decimal(str(wanted)))

    return check


def _is_option(value: Any, wanted: Any) -> bool:
    return any(same_value(value, option) for option in wanted)


CHECKS: dict[str, Check] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "anyOf": _any_of,
    "enum": _bound("enum", _is_option),
    "const": _bound("const", same_value),
    "minimum": _bound("minimum", _amount(operator.ge)),
    "maximum": _bound("maximum", _amount(operator.le)),
    "minItems": _bound("minItems", _size(list, operator.ge)),
    "maxItems": _bound("maxItems", _size(list, operator.le)),
    "minLength": _bound("minLength", _size(str, operator.ge)),
    "maxLength": _bound("maxLength", _size(str, operator.le)),
}
"""To add a keyword: a function (value, wanted, schema, where) -> problem or None, and the line here."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated key")
    return members


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
