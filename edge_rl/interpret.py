"""Try the sandbox: what is active here, and does it hold? `python -m edge_rl.interpret --selftest`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from edge_rl.cli import run_door
from edge_rl.errors import ConfigError, EdgeRLError
from edge_rl.sandbox import BACKENDS, UNSAFE_WARNING, AnyInterpreter, make_interpreter
from edge_rl.sandbox.escape import Finding, read_cases, run_cases, summarise


@dataclass(frozen=True, kw_only=True)
class InterpretArguments:
    """Run code in the sandbox, show what protects this machine, or run a file of labelled snippets against it."""

    cases: Path | None = None
    """JSONL of labelled snippets (id, code, expect, stdout_contains, why): print the escape table."""
    selftest: bool = False
    """Start every back end, try its promises for real and print what is active."""
    code: str | None = None
    """Python to run; `-` reads it from stdin."""
    backend: Literal["auto", "landlock", "bubblewrap", "monty"] = "auto"
    """Which sandbox; auto takes the first of landlock and monty that proves itself."""
    unsafe_interpreter: bool = False
    """No sandbox at all: code runs with all your rights."""
    timeout: float = 5.0
    """Wall-clock seconds of one call."""
    preload: tuple[str, ...] = ()
    """Packages that the code may import, e.g. sympy numpy."""
    json: bool = False
    """Print JSON."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m edge_rl.interpret`."""
    return run_door(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = tyro.cli(InterpretArguments, args=argv, prog="python -m edge_rl.interpret")
    if (arguments.cases is not None) + arguments.selftest + (arguments.code is not None) != 1:
        raise ConfigError("interpret: give exactly one of --cases FILE, --selftest and --code TEXT")
    if arguments.unsafe_interpreter:
        print(f"{'!' * 8} {UNSAFE_WARNING} {'!' * 8}", file=sys.stderr)
    if arguments.cases is not None:
        return _run_cases(arguments, arguments.cases)
    return _selftest(arguments) if arguments.selftest else _run_code(arguments, arguments.code or "")


def _make(arguments: InterpretArguments) -> AnyInterpreter:
    backend = "unsafe" if arguments.unsafe_interpreter else arguments.backend
    return make_interpreter(backend, timeout_s=arguments.timeout, preload=arguments.preload)


def _run_cases(arguments: InterpretArguments, path: Path) -> int:
    described: dict[str, Any] = {}

    def make() -> AnyInterpreter:
        interpreter = _make(arguments)
        described.update(interpreter.describe())
        return interpreter

    findings: list[Finding] = []
    for finding in run_cases(read_cases(path), make):
        findings.append(finding)
        if not arguments.json:
            print(_row(finding))
    summary = summarise(findings)
    if arguments.json:
        print(json.dumps({"sandbox": described, **summary, "cases": [_as_json(finding) for finding in findings]}))
    else:
        print(f"\n{described['backend']}: {summary['right']} of {summary['rows']} as labelled, ", end="")
        print(f"{len(summary['breaches'])} breaches")
        for name in ("wrong", "breaches"):
            if summary[name]:
                print(f"{name}: {', '.join(summary[name])}")
    return 0 if summary["right"] == summary["rows"] else 1


def _row(finding: Finding) -> str:
    case, execution = finding.case, finding.execution
    mark = "BREACH" if finding.is_breach else "right" if finding.is_right else "WRONG"
    notes = [f"left over: {', '.join(finding.left_over)}"] if finding.left_over else []
    notes += [execution.error or case.why]
    # Model text can hold control codes of the terminal: only printable characters get out.
    note = "".join(character if character.isprintable() else "?" for character in "; ".join(notes))
    milliseconds = 1_000 * execution.seconds
    return f"{mark:<6} {case.id:<18} {case.expect:<9} -> {execution.status:<9} {milliseconds:7.1f} ms  {note[:90]}"


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.case.id,
        "expect": finding.case.expect,
        "status": finding.execution.status,
        "right": finding.is_right,
        "breach": finding.is_breach,
        "left_over": finding.left_over,
        "stdout": finding.execution.stdout[:200],
        "error": finding.execution.error,
        "seconds": finding.execution.seconds,
    }


def _selftest(arguments: InterpretArguments) -> int:
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in BACKENDS if name != "unsafe"):
        try:
            with make_interpreter(name, timeout_s=arguments.timeout, preload=arguments.preload) as interpreter:
                found[name] = interpreter.describe()
        except EdgeRLError as error:
            found[name] = {"unavailable": str(error)}
    # The same choice as make_interpreter("auto"): bubblewrap is taken only when asked for.
    default = next((name for name in ("landlock", "monty") if "unavailable" not in found[name]), None)
    if arguments.json:
        print(json.dumps({"default": default, "backends": found}))
    else:
        for name, description in found.items():
            print(name)
            for key, value in description.items():
                print(f"  {key:<12} {json.dumps(value)}")
        print(f"default: {default or 'none, so model code is not run'}")
    return 0 if default else 1


def _run_code(arguments: InterpretArguments, code: str) -> int:
    with _make(arguments) as interpreter:
        execution = interpreter.open().run_to_end(sys.stdin.read() if code == "-" else code)
    if arguments.json:
        result = {"status": execution.status, "stdout": execution.stdout, "error": execution.error}
        print(json.dumps({**result, "seconds": execution.seconds}))
    else:
        print(execution.stdout, end="")
        if execution.error:
            print(f"{execution.status}: {execution.error}", file=sys.stderr)
    return 0 if execution.status in ("ok", "truncated") else 1


if __name__ == "__main__":
    sys.exit(main())
