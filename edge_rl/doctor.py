"""Say what happens in a run, why, and the one thing to do: `python -m edge_rl.doctor runs/<name>`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from edge_rl.cli import run_door
from edge_rl.monitor.doctor import Diagnosis, Severity, diagnose

HEADINGS = {Severity.PROBLEM: "problem", Severity.WARNING: "could be better", Severity.NOTE: "good to know"}


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Read a run and say in plain sentences what happens, why, and the one thing to do. Works while it trains."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, such as runs/default-smollm2-135m-seed0."""
    json: bool = False
    """Print the result as JSON."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.doctor`; 1 where there is a problem."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(DoctorArguments, args=argv, prog="python -m edge_rl.doctor")
    # heavy imports: --help should not wait for them
    from edge_rl.pipeline.examining import gather

    facts = gather(arguments.run)
    found = diagnose(facts)
    if arguments.json:
        print(
            json.dumps(
                [{**asdict(diagnosis), "severity": diagnosis.severity.name.lower()} for diagnosis in found], indent=2
            )
        )
    else:
        print(diagnosis_text(found, num_steps=len(facts.steps)))
    return int(any(diagnosis.severity is Severity.PROBLEM for diagnosis in found))


def diagnosis_text(found: Sequence[Diagnosis], *, num_steps: int) -> str:
    """Return the diagnoses for people."""
    if not found:
        return f"{num_steps} steps, nothing to complain about." if num_steps else "No step yet, nothing to say."
    blocks = [
        f"{HEADINGS[diagnosis.severity]}: {diagnosis.what}\n  {diagnosis.why}\n  -> {diagnosis.do}"
        for diagnosis in found
    ]
    return "\n\n".join(blocks)


if __name__ == "__main__":
    sys.exit(main())
