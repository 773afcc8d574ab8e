"""Instructions that a completion must follow, all of them. Knows no gold answer."""

from collections.abc import Mapping
from typing import Any

from edge_rl.errors import DataError
from edge_rl.scoring.extraction import visible_answer
from edge_rl.scoring.instructions import follows
from edge_rl.types import Sample, Verdict


def judge_constraints(completion: str, sample: Sample) -> Verdict:
    """Return whether every instruction of options["constraints"] is followed; an empty completion follows none.

    Each is {"id": "length_constraints:number_words", "relation": "at least", "num_words": 300}. A language that its
    script does not show cannot be judged.
    Raises: DataError if there is no instruction or one is unknown.
    """
    instructions: list[Mapping[str, Any]] = list(sample.options.get("constraints", ()))
    if not instructions:
        raise DataError(f"sample {sample.id}: options.constraints is empty; list instructions such as {{id, ...}}")
    text = visible_answer(completion) or ""
    results = [(str(instruction.get("id")), follows(text, instruction)) for instruction in instructions]
    if not text.strip():
        return Verdict(correct=False, reason="nothing was written", route="no_answer")
    broken = [name for name, result in results if result is False]
    if broken:
        return Verdict(correct=False, reason=f"not followed: {', '.join(broken)}"[:200], route="constraints")
    unknown = [name for name, result in results if result is None]
    if unknown:
        return Verdict(correct=None, reason=f"cannot be judged: {', '.join(unknown)}"[:200], route="constraints")
    return Verdict(correct=True, reason=f"all {len(results)} followed", route="constraints")
