"""The verifiers: completion and sample in, verdict out. Knows no reward and no model."""

from edge_rl.config import suggest
from edge_rl.errors import ConfigError
from edge_rl.scoring.verifiers.choice import judge_choice
from edge_rl.scoring.verifiers.code_output import judge_code_output
from edge_rl.scoring.verifiers.interval import judge_interval
from edge_rl.scoring.verifiers.math import judge_math
from edge_rl.scoring.verifiers.numeric import judge_numeric
from edge_rl.scoring.verifiers.sets import judge_set
from edge_rl.scoring.verifiers.text import judge_text
from edge_rl.scoring.verifiers.tuples import judge_tuple
from edge_rl.types import Verifier

VERIFIERS: dict[str, Verifier] = {
    "numeric": judge_numeric,
    "math": judge_math,
    "set": judge_set,
    "tuple": judge_tuple,
    "interval": judge_interval,
    "choice": judge_choice,
    "text": judge_text,
    "code-output": judge_code_output,
}
"""To add one: write scoring/verifiers/<name>.py, add the line here, add cases to tests/contract/test_verifiers.py."""


def get_verifier(kind: str) -> Verifier:
    """Return the verifier called `kind`.

    Raises: ConfigError if there is none.
    """
    if kind not in VERIFIERS:
        raise ConfigError(f"verifier {kind!r} does not exist; {suggest(kind, sorted(VERIFIERS))}")
    return VERIFIERS[kind]
