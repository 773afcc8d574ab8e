r"""Judge completions: `python -m edge_rl.verify --cases FILE.jsonl`, or one at a time; also `edge_rl.verify(...)`.

The module itself can be called: `edge_rl.verify("math", r"\boxed{1/2}", "0.5")` is `judge`. So the name of the door and
the name of the function are one, whichever is imported first.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edge_rl.cli import run_door
from edge_rl.errors import ConfigError, DataError
from edge_rl.scoring.scorer import gold_completion, judge_text
from edge_rl.scoring.verifiers import CODE_VERIFIERS, verifier_names
from edge_rl.scoring.workbench import SHOWN, CaseReport, CaseResult, load_cases, mutate_gold, run_cases
from edge_rl.types import Interpreter, Sample, Verdict


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Judge labelled cases, one completion, or 200 mutations of a gold answer."""

    cases: str | None = None
    """JSONL of labelled cases: id, kind, gold, prediction, expected."""
    kind: str | None = None
    """Verifier of one completion (see --list)."""
    gold: str | None = None
    """Gold answer of one completion."""
    completion: str | None = None
    """The completion; - reads it from stdin."""
    options: str = "{}"
    """Options of the verifier, as JSON."""
    mutations: bool = False
    """Try 200 mutations of the gold answer, none of which may be accepted, and the gold itself."""
    list: bool = False
    """Print the kinds and stop."""
    json: bool = False
    """Print the result as JSON."""


def judge(kind: str, completion: str, answer: str, **options: Any) -> Verdict:
    """Return the verdict of the verifier `kind` on a completion, given the gold answer and the verifier's options.

    For kind `code`, `tests` is the list of assertions and `interpreter` an Interpreter; without one the sandbox is used.
    Raises: ConfigError for an unknown kind; DataError for a gold answer or options that the kind cannot use.
    """
    interpreter: Interpreter | None = options.pop("interpreter", None)
    tests = tuple(options.pop("tests", ()))
    sample = Sample(id="verify", question="-", answer=answer, kind=kind, options=options, tests=tests)
    if interpreter is None and kind in CODE_VERIFIERS:
        interpreter = _sandbox()
    verdict = judge_text(completion, sample, interpreter)
    if verdict.route == "verifier_failed" and verdict.reason.startswith("sample verify:"):
        raise DataError(verdict.reason.replace("sample verify", f"kind {kind}"))
    return verdict


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.verify`: 0 if all is as labelled, 1 if not, 2 for a user's mistake."""
    import tyro  # only the command line needs it

    arguments = tyro.cli(VerifyArguments, args=argv, prog="python -m edge_rl.verify")
    if arguments.list:
        print("\n".join(verifier_names()))
        return 0
    if arguments.cases is not None:
        return _cases(Path(arguments.cases), as_json=arguments.json)
    if arguments.kind is None or arguments.gold is None:
        raise ConfigError("nothing to judge: give --cases FILE, or --kind and --gold with --completion or --mutations")
    if arguments.mutations:
        return _mutations(arguments)
    return _one(arguments)


def _cases(path: Path, *, as_json: bool) -> int:
    cases = load_cases(path)
    interpreter = _sandbox() if any(case.sample.kind in CODE_VERIFIERS for case in cases) else None
    report = run_cases(cases, interpreter)
    _print_report(report, as_json=as_json)
    return 0 if report.is_clean else 1


def _mutations(arguments: VerifyArguments) -> int:
    assert arguments.kind is not None and arguments.gold is not None
    sample = Sample(id="gold", question="-", answer=arguments.gold, kind=arguments.kind, options=_options(arguments))
    interpreter = _sandbox() if arguments.kind in CODE_VERIFIERS else None
    gold = gold_completion(sample)
    accepted = gold is None or judge_text(gold, sample, interpreter).correct is True
    report = run_cases(mutate_gold(sample), interpreter)
    _print_report(report, as_json=arguments.json)
    if not accepted:
        print(f"the gold answer itself is not accepted: {gold!r}"[:SHOWN], file=sys.stderr)
    return 0 if accepted and not report.false_accepts else 1


def _one(arguments: VerifyArguments) -> int:
    assert arguments.kind is not None and arguments.gold is not None
    if arguments.completion is None:
        raise ConfigError("--completion is missing: give the text, or - to read it from stdin")
    text = sys.stdin.read() if arguments.completion == "-" else arguments.completion
    verdict = judge(arguments.kind, text, arguments.gold, **_options(arguments))
    row = {"correct": verdict.correct, "reason": verdict.reason, "route": verdict.route}
    word = {True: "right", False: "wrong", None: "could not judge"}[verdict.correct]
    print(json.dumps(row) if arguments.json else f"{word}: {verdict.reason} (route {verdict.route})")
    return 0 if verdict.correct else 1


def _options(arguments: VerifyArguments) -> dict[str, Any]:
    try:
        options = json.loads(arguments.options)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ConfigError(f'--options {arguments.options!r} is no JSON object; write \'{{"tolerance": "0.01"}}\'')
    return options  # pyright: ignore[reportUnknownVariableType]


def _sandbox() -> Interpreter:
    from edge_rl.sandbox import make_interpreter  # started only where code is run

    return make_interpreter()


def _print_report(report: CaseReport, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_dict(report), ensure_ascii=False))
        return
    for name, rows in (
        ("false accept", report.false_accepts),
        ("false reject", report.false_rejects),
        ("could not judge", report.unjudged),
        ("slow", report.slow),
    ):
        for row in rows:
            print(f"{name}: {_line(row)}")
    print(
        f"{report.num_cases} cases: {len(report.false_accepts)} false accepts, {len(report.false_rejects)} false rejects, "
        f"{len(report.unjudged)} could not be judged, {len(report.slow)} slow; {report.seconds:.1f} s"
    )


def _line(row: CaseResult) -> str:
    completion = row.case.completion
    shown = completion if len(completion) <= SHOWN else f"...{completion[-SHOWN:]}"
    return (
        f"{row.case.sample.id} {row.case.sample.kind} gold {row.case.sample.answer[:SHOWN]!r} completion {shown!r} "
        f"({row.case.why}): {row.verdict.reason} (route {row.verdict.route}, {row.seconds:.2f} s)"
    )


def _as_dict(report: CaseReport) -> dict[str, Any]:
    def rows(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
        return [
            {
                "id": result.case.sample.id,
                "kind": result.case.sample.kind,
                "why": result.case.why,
                "expected": result.case.expected,
                "correct": result.verdict.correct,
                "reason": result.verdict.reason,
                "route": result.verdict.route,
                "seconds": round(result.seconds, 4),
            }
            for result in results
        ]

    return {
        "cases": report.num_cases,
        "false_accepts": rows(report.false_accepts),
        "false_rejects": rows(report.false_rejects),
        "unjudged": rows(report.unjudged),
        "slow": rows(report.slow),
        "seconds": round(report.seconds, 3),
        "routes": report.routes,
    }


class _CallableModule(ModuleType):
    """This module, with a call that judges one completion."""

    def __call__(self, kind: str, completion: str, answer: str, **options: Any) -> Verdict:
        """Return `judge(kind, completion, answer, **options)`."""
        return judge(kind, completion, answer, **options)


if __name__ == "__main__":
    sys.exit(run_door(main, None))
else:
    sys.modules[__name__].__class__ = _CallableModule
