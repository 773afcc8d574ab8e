"""A candidate program against its tests, without the two ever sharing a process.

One session runs the candidate and answers calls; another, which never sees the candidate's code, runs the tests with stubs
in place of its functions. Only plain data crosses. So a candidate that exits early, replaces == or print, or prints a line
that says "passed" gains nothing: it does not know what is expected, and it does not compare.

The tests run again from the start whenever a call has no recorded answer yet; the answers recorded so far are replayed.
"""

import ast
import builtins
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from edge_rl.errors import DataError
from edge_rl.types import ExecutionStatus, Interpreter, Session

MAX_CALLS = 2_000
MAX_CODE = 50_000
MAX_SECONDS = 20.0
REPLY = "EDGE_REPLY "

CODEC = r"""
import json as _json, builtins as _builtins
def _pack(value, keep=None, depth=0):
    kind = type(value)
    if depth > 60: raise ValueError("nested too deeply")
    def inner(parts): return [_pack(part, keep, depth + 1) for part in parts]
    if value is None or kind is bool or kind is str: return value
    if kind is int: return {"i": hex(value)}
    if kind is float: return {"f": value.hex()}
    if kind is complex: return {"c": [value.real.hex(), value.imag.hex()]}
    if kind is bytes: return {"b": value.hex()}
    if kind is list: return {"l": inner(value)}
    if kind is tuple: return {"t": inner(value)}
    if kind is set: return {"s": inner(value)}
    if kind is frozenset: return {"z": inner(value)}
    if kind is range: return {"r": [value.start, value.stop, value.step]}
    if isinstance(value, dict): return {"d": inner([part for pair in dict.items(value) for part in pair])}
    if isinstance(value, int): return {"i": hex(int.__int__(value))}
    if isinstance(value, float): return {"f": float.hex(value)}
    if isinstance(value, str): return str.__str__(value)
    if isinstance(value, tuple): return {"t": inner(tuple.__iter__(value))}
    if isinstance(value, list): return {"l": inner(list.__iter__(value))}
    if hasattr(kind, "__next__"):
        parts = []
        for part in value:
            parts.append(part)
            if len(parts) > 100000: raise ValueError("an endless iterator")
        return {"n": inner(parts)}
    if keep is None: raise ValueError("no plain data")
    keep.append(value)
    return {"h": len(keep) - 1}
def _unpack(data, handle=None):
    if not isinstance(data, dict): return data
    (tag, body), = data.items()
    def inner(): return [_unpack(part, handle) for part in body]
    if tag == "i": return int(body, 16)
    if tag == "f": return float.fromhex(body)
    if tag == "c": return complex(float.fromhex(body[0]), float.fromhex(body[1]))
    if tag == "b": return bytes.fromhex(body)
    if tag == "l": return inner()
    if tag == "t": return tuple(inner())
    if tag == "s": return set(inner())
    if tag == "z": return frozenset(inner())
    if tag == "r": return range(*body)
    if tag == "n": return iter(inner())
    if tag == "d":
        parts = inner()
        return dict(zip(parts[::2], parts[1::2]))
    if tag == "h": return handle(body)
    raise ValueError("unknown data")
"""
SERVER = r"""
_kept = []
def _serve(request):
    name, args, kwargs = _json.loads(request)
    args = [_unpack(part, lambda place: _kept[place]) for part in args]
    kwargs = {key: _unpack(part, lambda place: _kept[place]) for key, part in kwargs}
    try:
        value = {"ok": _pack(globals()[name](*args, **kwargs), _kept)}
    except Exception as error:
        value = {"error": type(error).__name__, "message": str(error)[:200]}
    try:
        value["args"] = [_pack(part, _kept) for part in args]
    except Exception:
        value["args"] = None
    return "\nREPLY" + _json.dumps(value)
""".replace("REPLY", REPLY)
STUBS = r"""
class _Need(BaseException): pass
class _Handle:
    def __init__(self, place): self.place = place
_calls = 0
def _ask(value):
    if isinstance(value, _Handle): return {"h": value.place}
    return _pack(value)
def _stub(name):
    def call(*args, **kwargs):
        global _calls
        request = _json.dumps([name, [_ask(part) for part in args], [[key, _ask(part)] for key, part in kwargs.items()]])
        place = _calls
        _calls += 1
        if place >= len(_answers): raise _Need(request)
        answer = _json.loads(_answers[place])
        for before, after in zip(args, answer.get("args") or []):
            after = _unpack(after, _Handle)
            if type(before) is list and type(after) is list: before[:] = after
            if type(before) is dict and type(after) is dict:
                before.clear(); before.update(after)
            if type(before) is set and type(after) is set:
                before.clear(); before.update(after)
        if "ok" in answer: return _unpack(answer["ok"], _Handle)
        kind = getattr(_builtins, answer["error"], Exception)
        raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else Exception)(answer["message"])
    return call
"""
RUNNER = r"""
_calls = 0
_answers = _json.loads({answers!r})
import random as _random
_random.seed(0)
_report = None
try:
    _space = {{"__name__": "tests"}}
    for _name in {names!r}: _space[_name] = _stub(_name)
    for _part in _json.loads({tests!r}): exec(compile(_part, "tests", "exec"), _space)
    _report = ["pass", ""]
except _Need as _need: _report = ["need", _need.args[0]]
except AssertionError as _error: _report = ["fail", "an assertion does not hold"]
except Exception as _error: _report = ["fail", type(_error).__name__ + ": " + str(_error)[:200]]
print("\nREPLY" + _json.dumps(_report))
""".replace("REPLY", REPLY)


@dataclass(frozen=True, slots=True)
class TestRun:
    """Whether the tests pass; None where they could not be run."""

    passed: bool | None
    reason: str


def run_tests(candidate: str, tests: Sequence[str], interpreter: Interpreter, reference: str = "") -> TestRun:
    """Return whether the tests hold for the candidate's functions.

    `reference` is the gold program, where there is one: it is not run, but a test may use a module that it imports, or
    call a function of it that has the name of a builtin. A candidate cannot replace a builtin in the tests.

    Raises: DataError if a test is no Python; SandboxError where no session can be had.
    """
    if len(candidate) > MAX_CODE:
        return TestRun(False, "the program is too long")
    imports, functions = _of_reference(reference)
    names = free_names(tests, functions)
    tests = [*(source for name, source in imports.items() if name in names), *tests]
    names = [name for name in names if name not in imports]
    server = interpreter.open()
    try:
        started = server.run(CODEC + SERVER + "\nprint()\n")
        if started.status is not ExecutionStatus.OK:
            return TestRun(None, f"the sandbox does not start: {started.error}")
        loaded = server.run(candidate)
        if loaded.status not in (ExecutionStatus.OK, ExecutionStatus.TRUNCATED):
            return TestRun(False, f"the program fails: {loaded.error or loaded.status}"[:200])
        judge = interpreter.open()
        try:
            return _replay(server, judge, names, tests)
        finally:
            judge.close()
    finally:
        server.close()


def free_names(tests: Sequence[str], functions: Set[str] = frozenset()) -> list[str]:
    """Return the names that the tests use and nobody in them defines: the candidate's functions.

    `functions` are names that belong to the candidate although builtins have them too.

    Raises: DataError if a test is no Python.
    """
    used: set[str] = set()
    defined: set[str] = (set(dir(builtins)) | {"__name__", "__file__"}) - functions
    for test in tests:
        try:
            tree = ast.parse(test)
        except SyntaxError as error:
            raise DataError(f"test {test[:60]!r} is no Python: {error}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
            elif isinstance(node, ast.alias):
                defined.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                defined.add(node.name)
    return sorted(used - defined)


def _of_reference(source: str) -> tuple[dict[str, str], set[str]]:
    """Return (imported name -> import statement, names of functions) of a program; nothing where it is no Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return {}, set()
    imports = {
        (alias.asname or alias.name).split(".")[0]: ast.unparse(node)
        for node in body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return imports, {node.name for node in body if isinstance(node, ast.FunctionDef)}


def _replay(server: Session, judge: Session, names: Sequence[str], tests: Sequence[str]) -> TestRun:
    judge.run(CODEC + STUBS)
    answers: list[str] = []
    seconds = 0.0
    while len(answers) < MAX_CALLS and seconds < MAX_SECONDS:
        script = RUNNER.format(answers=json.dumps(answers), names=list(names), tests=json.dumps(list(tests)))
        execution = judge.run(script)
        report = _reply(execution.stdout)
        if report is None:
            return TestRun(False, f"the tests end without a result: {execution.error or execution.status}"[:200])
        kind, detail = report
        if kind != "need":
            return TestRun(kind == "pass", detail or "all tests hold")
        answer = server.run(f"print(_serve({detail!r}))")
        seconds += answer.seconds + execution.seconds
        value = _reply(answer.stdout)
        if not isinstance(value, dict) or not ({"ok", "error"} & value.keys()):
            return TestRun(False, f"a call gives no result: {answer.error or answer.status}"[:200])
        answers.append(json.dumps(value))
    return TestRun(False, "too many calls or too slow")


def _reply(stdout: str) -> Any:
    lines = [line for line in stdout.splitlines() if line.startswith(REPLY)]
    if not lines:
        return None
    try:
        return json.loads(lines[-1].removeprefix(REPLY))
    except (ValueError, RecursionError):
        return None
