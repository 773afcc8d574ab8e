from decimal import Decimal
from typing import Any

import pytest

from edge_rl.errors import DataError
from edge_rl.scoring.calls import calls_problem, read_calls, read_wanted, write_calls
from edge_rl.scoring.structured import NOTHING, last_json, read_json, same_value, schema_problem


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "NaN", "[Infinity]", "{", "", "[" * 5000])
def test_only_strict_json_is_read(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, Decimal("1.0"), True),
        (0.05, Decimal("0.05"), True),
        (True, 1, False),
        ("1", 1, False),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, None, True),
    ],
)
def test_values_are_equal_by_value(left: Any, right: Any, same: bool) -> None:
    assert same_value(left, right) is same
    assert same_value(right, left) is same


def test_the_last_json_in_prose_is_found() -> None:
    assert last_json('first {"a": 1} then {"a": 2} end') == {"a": 2}
    assert last_json("none {here}") is NOTHING


@pytest.mark.parametrize(
    ("value", "schema", "is_fine"),
    [
        ({"a": 1}, {"type": "dict", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True),
        ({}, {"type": "object", "required": ["a"]}, False),
        ({"a": True}, {"properties": {"a": {"type": "integer"}}}, False),
        ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False}, False),
        ([1, 2], {"type": "array", "items": {"type": "number", "maximum": 1}}, False),
        ("x", {"enum": ["x", "y"]}, True),
        ("xyz", {"maxLength": 2}, False),
        (3, {"anyOf": [{"type": "string"}, {"minimum": 3}]}, True),
    ],
)
def test_a_schema_is_kept_or_broken(value: Any, schema: dict[str, Any], is_fine: bool) -> None:
    assert (schema_problem(value, schema) is None) is is_fine


def test_an_unknown_schema_keyword_is_an_error() -> None:
    with pytest.raises(DataError, match="not supported"):
        schema_problem(1, {"oneOff": []})


WANTED = '[{"f.g": {"a": [1, 2], "b": ["New York", ""]}}, {"h": {"xs": [[1, 2]]}}]'


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("[f.g(a=1), h(xs=[1, 2])]", True),
        ("[h(xs=[1, 2]), f.g(a=2, b='new-york')]", True),
        (
            '<tool_call>{"name": "f.g", "arguments": {"a": 1}}</tool_call>'
            '<tool_call>{"name": "h", "arguments": {"xs": [1, 2]}}</tool_call>',
            True,
        ),
        ('[{"f.g": {"a": 1}}, {"h": {"xs": [1, 2]}}]', True),
        ("[f.g(a=3), h(xs=[1, 2])]", False),
        ("[f.g(a=1)]", False),
        ("[f.g(a=1), h(xs=[2, 1])]", False),
        ("[f.g(a=1, c=2), h(xs=[1, 2])]", False),
        ("[f.g(b='New York'), h(xs=[1, 2])]", False),
        ("[f.g(a=1), f.g(a=2)]", False),
    ],
)
def test_calls_are_compared_with_alternatives_in_any_order(text: str, right: bool) -> None:
    calls = read_calls(text, {})
    assert calls is not None
    assert (calls_problem(calls, read_wanted(WANTED, "s"), {}) is None) is right


@pytest.mark.parametrize(
    "text", ["f(**x)", "f(g(1))", "f(a=__import__('os'))", "(" * 100, "lambda: 1", "f", "1 + 1", ""]
)
def test_what_is_no_plain_call_is_refused(text: str) -> None:
    assert read_calls(text, {}) is None


def test_one_call_cannot_stand_for_two() -> None:
    calls = read_calls("[f(a=1), f(a=2)]", {})
    assert calls is not None
    assert calls_problem(calls, read_wanted('[{"f": {"a": [1]}}, {"f": {"a": [1, 3]}}]', "s"), {}) is not None


def test_positional_arguments_get_the_names_of_the_tool() -> None:
    calls = read_calls("f(1, b=2)", {"f": ("a", "b")})
    assert calls is not None
    assert dict(calls[0].arguments) == {"a": 1, "b": 2}


def test_gold_calls_are_written_as_a_completion() -> None:
    assert write_calls(read_wanted(WANTED, "s")) == "[f.g(a=1), h(xs=[1, 2])]"
