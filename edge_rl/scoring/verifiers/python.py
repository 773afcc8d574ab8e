"""A verifier that a user wrote in Python. Knows only its file and its name; it runs where it can be killed."""

from pathlib import Path

from edge_rl.errors import DataError
from edge_rl.scoring.pool import TaskTimeoutError, shared_pool
from edge_rl.types import Sample, Verdict

LIMIT_S = 0.9


def judge_python(completion: str, sample: Sample) -> Verdict:
    """Return what the user's function says: `verify(completion, answer, **options) -> True, False, None or a score`.

    Options: file (path of the Python file), function ("verify"), threshold (0.5, for a score), example (a completion that
    is right, for the gold check); all others are passed on.
    Raises: DataError if the file does not exist; VerifierError for what the function raises.
    """
    path = Path(str(sample.options.get("file", "")))
    if not path.is_file():
        raise DataError(f"sample {sample.id}: file {str(path)!r} does not exist; set options.file to a Python file")
    own = {"file", "function", "threshold", "example"}
    payload = {
        "file": str(path.resolve()),
        "function": str(sample.options.get("function", "verify")),
        "completion": completion,
        "answer": sample.answer,
        "options": {key: value for key, value in sample.options.items() if key not in own},
    }
    if not completion.strip():
        return Verdict(correct=False, reason="an empty completion", route="no_answer")
    try:
        result = shared_pool().call("user_verifier", payload, limit_s=LIMIT_S)
    except TaskTimeoutError:
        return Verdict(correct=None, reason="the function did not end in time", route="python")
    if result is None or isinstance(result, bool):
        return Verdict(correct=result, reason=f"{payload['function']} returned {result}", route="python")
    right = result >= float(sample.options.get("threshold", 0.5))
    return Verdict(correct=right, reason=f"{payload['function']} returned {result}", route="python")
