"""Tool calls in a completion, and whether they are the wanted ones. Runs nothing: Python syntax is only parsed.

Calls are read from <tool_call> tags, JSON ({"name", "arguments"} or {name: arguments}) and Python syntax (`[f(a=1)]`).
Source of the alternatives and of the loose comparison of strings: Berkeley Function-Calling Leaderboard (BFCL).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from edge_rl.errors import DataError
from edge_rl.scoring.structured import NOTHING, last_json, read_json, same_value, schema_problem

MAX_PYTHON = 20_000
MAX_BRACKETS = 40
TOOL_CALL_TAG = re.compile(r"<tool_call>\s*((?:(?!</?tool_call>).)*)</tool_call>", re.DOTALL)
FENCE = re.compile(r"```[ \t]*(?:json|python|tool_code|tool_call)?[ \t]*\n(.*?)```", re.DOTALL)
LOOSE = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name with its arguments; arguments without a name are numbered."""

    name: str
    arguments: Mapping[str, Any]


def read_calls(text: str, parameters: Mapping[str, Sequence[str]]) -> list[Call] | None:
    """Return the calls that a text makes, in order; None where it makes none.

    `parameters` holds the parameter names of each known tool in order, so that arguments by position get their names.
    """
    if tags := TOOL_CALL_TAG.findall(text):
        calls: list[Call] = []
        for tag in tags[:50]:
            part = _from_text(tag.strip(), parameters)
            if part is None:
                return None
            calls.extend(part)
        return calls
    if fences := FENCE.findall(text):
        return _from_text(fences[-1].strip(), parameters)
    stripped = text.strip()
    paragraphs = [part for part in re.split(r"\n\s*\n", stripped) if part.strip()]
    for part in (stripped, paragraphs[-1] if paragraphs else "", stripped.rsplit("\n", 1)[-1]):
        found = _from_text(part.strip(), parameters)
        if found is not None:
            return found
    value = last_json(stripped)
    return None if value is NOTHING else _from_json(value)


def read_wanted(answer: str, sample_id: str) -> list[Call]:
    """Return the gold calls, each argument a list of alternatives ("" among them: it may be left out).

    Raises: DataError if the answer is no list of calls.
    """
    try:
        value = read_json(answer)
    except ValueError as error:
        raise DataError(f"sample {sample_id}: the answer is no JSON list of calls: {error}") from None
    wanted: list[Call] = []
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, str):
            calls = _from_python(item, {})
        elif (call := _with_alternatives(item)) is not None:
            wanted.append(call)
            continue
        else:
            calls = _from_json(item)
        if calls is None:
            raise DataError(
                f"sample {sample_id}: {str(item)[:80]!r} is no call; write {{name: {{argument: [values]}}}}"
            )
        wanted.extend(Call(call.name, {key: [option] for key, option in call.arguments.items()}) for call in calls)
    return wanted


def _with_alternatives(item: Any) -> Call | None:
    """Return the call of {name: {argument: [alternatives]}}; None for another form."""
    if not isinstance(item, Mapping) or "name" in item or len(cast("Mapping[str, Any]", item)) != 1:
        return None
    name, arguments = next(iter(cast("Mapping[str, Any]", item).items()))
    if not isinstance(arguments, Mapping):
        return None
    members = cast("Mapping[str, Any]", arguments)
    return Call(name, members) if all(isinstance(options, list) for options in members.values()) else None


def calls_problem(calls: Sequence[Call], wanted: Sequence[Call], tools: Mapping[str, Any]) -> str | None:
    """Return why the calls are not the wanted ones, None if they are; their order does not matter."""
    if len(calls) != len(wanted):
        return f"{len(calls)} calls, expected {len(wanted)}"
    problem = _wanted_problem(calls, wanted)
    if problem is None:
        # The gold answer is the authority: some list values that the tool's own schema does not allow.
        return None
    schema_problems = (_tool_problem(call, tools) for call in calls)
    return next((found for found in schema_problems if found is not None), problem)


def _wanted_problem(calls: Sequence[Call], wanted: Sequence[Call]) -> str | None:
    open_calls = list(calls)
    last_problem = "other calls"
    for want in wanted:
        problems = [_call_problem(call, want) for call in open_calls]
        if None not in problems:
            return next((problem for problem in problems if problem and not problem.startswith("calls ")), last_problem)
        open_calls.pop(problems.index(None))
    return None


def write_calls(wanted: Sequence[Call]) -> str:
    """Return a completion that makes the wanted calls, with the first alternative of each argument."""
    parts: list[str] = []
    for call in wanted:
        arguments = [f"{key}={_first(options)!r}" for key, options in call.arguments.items() if "" not in options]
        parts.append(f"{call.name}({', '.join(arguments)})")
    return f"[{', '.join(parts)}]"


def _first(options: Any) -> Any:
    for option in options:
        if option != "":
            return _plain(option)
    return ""


def _plain(option: Any) -> Any:
    if isinstance(option, Mapping):
        members = cast("Mapping[str, Any]", option)
        return {
            key: _first(value) if isinstance(value, list) else value
            for key, value in members.items()
            if not (isinstance(value, list) and "" in value)
        }
    if isinstance(option, list):
        return [_plain(part) for part in cast("list[Any]", option)]
    return float(option) if isinstance(option, Decimal) else option


def _tool_problem(call: Call, tools: Mapping[str, Any]) -> str | None:
    if not tools:
        return None
    if call.name not in tools:
        return f"tool {call.name[:60]!r} does not exist"
    return schema_problem(dict(call.arguments), {"additionalProperties": False, **tools[call.name]}, call.name)


def _call_problem(call: Call, want: Call) -> str | None:
    if call.name != want.name:
        return f"calls {call.name[:60]!r}, expected {want.name!r}"
    for key, value in call.arguments.items():
        if key not in want.arguments:
            return f"{call.name}: unexpected argument {key[:60]!r}"
        if not _is_among(value, want.arguments[key]):
            return f"{call.name}: {key} has another value"
    for key, options in want.arguments.items():
        if key not in call.arguments and "" not in options:
            return f"{call.name}: argument {key!r} is missing"
    return None


def _is_among(value: Any, options: Sequence[Any]) -> bool:
    return any(_matches(value, option) for option in options)


def _matches(value: Any, option: Any) -> bool:
    if isinstance(value, str) and isinstance(option, str):
        return _loose(value) == _loose(option)
    if isinstance(option, Mapping) and isinstance(value, Mapping):
        wanted, given = cast("Mapping[str, Any]", option), cast("Mapping[str, Any]", value)
        for key, part in wanted.items():
            choices = cast("list[Any]", part) if isinstance(part, list) else [part]
            if key not in given:
                if "" not in choices:
                    return False
            elif not (_is_among(given[key], choices) or _matches(given[key], part)):
                return False
        return all(key in wanted for key in given)
    if isinstance(option, list) and isinstance(value, list):
        ones, others = cast("list[Any]", value), cast("list[Any]", option)
        return len(ones) == len(others) and all(_matches(*pair) for pair in zip(ones, others, strict=True))
    return same_value(value, option)


def _loose(text: str) -> str:
    return LOOSE.sub("", text).lower().replace("'", '"')


def _from_text(text: str, parameters: Mapping[str, Sequence[str]]) -> list[Call] | None:
    try:
        return _from_json(read_json(text))
    except ValueError:
        return _from_python(text, parameters)


def _from_json(value: Any) -> list[Call] | None:
    if isinstance(value, list):
        parts = [_from_json(item) for item in cast("list[Any]", value)]
        return [call for part in parts for call in part or []] if all(part is not None for part in parts) else None
    if not isinstance(value, Mapping):
        return None
    members = cast("Mapping[str, Any]", value)
    if isinstance(members.get("function"), Mapping):
        return _from_json(members["function"])
    if isinstance(members.get("name"), str):
        arguments = members.get("arguments", members.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments)
            except ValueError:
                return None
        return [Call(members["name"], cast("Mapping[str, Any]", arguments))] if isinstance(arguments, Mapping) else None
    if members and all(isinstance(arguments, Mapping) for arguments in members.values()):
        return [Call(name, arguments) for name, arguments in members.items()]
    return None


def _from_python(text: str, parameters: Mapping[str, Sequence[str]]) -> list[Call] | None:
    if not text or len(text) > MAX_PYTHON or _bracket_depth(text) > MAX_BRACKETS or not text.endswith((")", "]")):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    calls: list[Call] = []
    for node in nodes:
        if not isinstance(node, ast.Call):
            return None
        call = _python_call(node, parameters)
        if call is None:
            return None
        calls.append(call)
    return calls


def _python_call(node: ast.Call, parameters: Mapping[str, Sequence[str]]) -> Call | None:
    name = _dotted(node.func)
    if name is None or any(keyword.arg is None for keyword in node.keywords):
        return None
    names = parameters.get(name, ())
    arguments: dict[str, Any] = {}
    try:
        for place, argument in enumerate(node.args):
            arguments[names[place] if place < len(names) else f"#{place}"] = _literal(argument)
        for keyword in node.keywords:
            if str(keyword.arg) in arguments:
                return None
            arguments[str(keyword.arg)] = _literal(keyword.value)
    except ValueError:
        return None
    return Call(name, arguments)


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal as JSON would hold it; a tuple is a list."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | type(None)):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(part) for part in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {
            str(_literal(key)): _literal(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    raise ValueError("no literal")


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest
