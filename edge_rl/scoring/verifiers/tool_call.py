"""Which tools a completion calls, with which arguments. Runs no tool."""

from collections.abc import Mapping, Sequence
from typing import Any

from edge_rl.errors import DataError
from edge_rl.scoring.calls import calls_problem, read_calls, read_wanted
from edge_rl.scoring.extraction import visible_answer
from edge_rl.types import Sample, Verdict


def judge_tool_call(completion: str, sample: Sample) -> Verdict:
    """Return whether the completion makes exactly the gold calls, in any order.

    The gold answer is JSON: [{"name": {"argument": [alternatives]}}], or plain calls. [] means: text, and no call.
    Options: tools (list of {"name", "parameters": schema}), against which names and types are checked.
    Raises: DataError if the answer or a tool is malformed.
    """
    wanted = read_wanted(sample.answer, sample.id)
    tools = _schemas(sample.options.get("tools", ()), sample.id)
    text = visible_answer(completion) or ""
    calls = read_calls(text, {name: tuple(schema.get("properties", {})) for name, schema in tools.items()})
    if not wanted:
        right = bool(text.strip()) and not calls
        return Verdict(
            correct=right, reason="no call was wanted" if right else "a call or nothing at all", route="calls"
        )
    if not calls:
        return Verdict(correct=False, reason="no call that can be read", route="no_answer")
    problem = calls_problem(calls, wanted, tools)
    return Verdict(correct=problem is None, reason=problem or "the wanted calls", route="calls")


def _schemas(tools: Sequence[Mapping[str, Any]], sample_id: str) -> dict[str, Mapping[str, Any]]:
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        tool = tool.get("function", tool)
        if "name" not in tool:
            raise DataError(f"sample {sample_id}: a tool without a name; write {{name, parameters}}")
        schemas[tool["name"]] = tool.get("parameters", {})
    return schemas
