"""The verifiers: completion and sample in, verdict out. Knows no reward and no model."""

from functools import partial
from typing import Protocol

from edge_rl.config import suggest
from edge_rl.errors import ConfigError, VerifierError
from edge_rl.scoring.verifiers.choice import judge_choice
from edge_rl.scoring.verifiers.code import judge_code
from edge_rl.scoring.verifiers.code_output import judge_code_output
from edge_rl.scoring.verifiers.combined import Find, judge_all_of, judge_vote
from edge_rl.scoring.verifiers.constraints import judge_constraints
from edge_rl.scoring.verifiers.interval import judge_interval
from edge_rl.scoring.verifiers.json_value import judge_json
from edge_rl.scoring.verifiers.keywords import judge_keywords
from edge_rl.scoring.verifiers.math import judge_math
from edge_rl.scoring.verifiers.numeric import judge_numeric
from edge_rl.scoring.verifiers.python import judge_python
from edge_rl.scoring.verifiers.regex import judge_regex
from edge_rl.scoring.verifiers.sets import judge_set
from edge_rl.scoring.verifiers.text import judge_text
from edge_rl.scoring.verifiers.tool_call import judge_tool_call
from edge_rl.scoring.verifiers.tuples import judge_tuple
from edge_rl.types import Interpreter, Sample, Verdict, Verifier

VERIFIERS: dict[str, Verifier] = {
    "numeric": judge_numeric,
    "math": judge_math,
    "set": judge_set,
    "tuple": judge_tuple,
    "interval": judge_interval,
    "choice": judge_choice,
    "text": judge_text,
    "regex": judge_regex,
    "keywords": judge_keywords,
    "json": judge_json,
    "tool_call": judge_tool_call,
    "constraints": judge_constraints,
    "code-output": judge_code_output,
    "python": judge_python,
}
"""To add one: write scoring/verifiers/<name>.py, add the line here, add cases to tests/contract/test_verifiers.py."""


class CodeVerifier(Protocol):
    """A verifier that runs the completion's code."""

    def __call__(self, completion: str, sample: Sample, run_code: Interpreter) -> Verdict:
        """Judge one completion."""
        ...


class CombinedVerifier(Protocol):
    """A verifier that asks other verifiers."""

    def __call__(self, completion: str, sample: Sample, find: Find) -> Verdict:
        """Judge one completion."""
        ...


CODE_VERIFIERS: dict[str, CodeVerifier] = {
    "code": judge_code,
}
"""Verifiers that run the completion's code, in an interpreter that they are given."""

COMBINED_VERIFIERS: dict[str, CombinedVerifier] = {
    "all_of": judge_all_of,
    "vote": judge_vote,
}
"""Verifiers that ask other verifiers."""


def verifier_names() -> list[str]:
    """Return the names of all kinds."""
    return sorted([*VERIFIERS, *CODE_VERIFIERS, *COMBINED_VERIFIERS])


def get_verifier(kind: str, interpreter: Interpreter | None = None) -> Verifier:
    """Return the verifier called `kind`; one that runs code needs an interpreter.

    Raises: ConfigError if there is none of that name; VerifierError if it needs an interpreter and has none.
    """
    if kind in CODE_VERIFIERS:
        if interpreter is None:
            raise VerifierError(f"verifier {kind!r} runs code and was given no interpreter")
        return partial(CODE_VERIFIERS[kind], run_code=interpreter)
    if kind in COMBINED_VERIFIERS:
        return partial(COMBINED_VERIFIERS[kind], find=partial(get_verifier, interpreter=interpreter))
    if kind not in VERIFIERS:
        raise ConfigError(f"verifier {kind!r} does not exist; {suggest(kind, verifier_names())}")
    return VERIFIERS[kind]
