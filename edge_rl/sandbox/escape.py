"""The escape suite: labelled snippets run against canaries. Knows what must not happen, and no back end.

Canaries: a secret in the environment of this process, a file beside the scratch directories, an inheritable open file,
and a service on the loopback. After each snippet no process may be left, and its output never contains BREACH.
"""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from edge_rl.errors import DataError
from edge_rl.types import Execution, ExecutionStatus

CANARY_PORT = 8765
_CANARY = "canary-7f3a"
_FAILING = frozenset({ExecutionStatus.ERROR, ExecutionStatus.DENIED, ExecutionStatus.TIMEOUT})
_POOL_WORKERS = frozenset({"monty", "monty.exe"})


class _OneShot(Protocol):
    def run_to_end(self, code: str) -> Execution: ...


class _Suspect(Protocol):
    @property
    def scratch_root(self) -> Path: ...

    def open(self) -> _OneShot: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A snippet and how it must end."""

    id: str
    code: str
    expect: ExecutionStatus
    """DENIED stands for any failing status."""
    stdout_contains: str
    why: str

    @classmethod
    def from_json(cls, line: str, where: str) -> Self:
        """Return the case of one JSONL line.

        Raises: DataError, naming `where`, if it is none.
        """
        try:
            row = json.loads(line)
            return cls(**row | {"expect": ExecutionStatus(row["expect"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{where}: no labelled snippet ({error}); needed: id, code, expect, stdout_contains, why"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one snippet did."""

    case: Case
    execution: Execution
    left_over: tuple[str, ...]
    """Processes that outlived the call."""

    @property
    def is_breach(self) -> bool:
        """Whether something got out."""
        return "BREACH" in self.execution.stdout or bool(self.left_over)

    @property
    def is_right(self) -> bool:
        """Whether it ended as labelled and nothing got out."""
        allowed = _FAILING if self.case.expect is ExecutionStatus.DENIED else {self.case.expect}
        if "denied is also right" in self.case.why:
            allowed = allowed | {ExecutionStatus.DENIED}
        contains = self.case.stdout_contains in self.execution.stdout
        return self.execution.status in allowed and contains and not self.is_breach


def read_cases(path: Path) -> list[Case]:
    """Return the labelled snippets of a JSONL file.

    Raises: DataError if there is no such file, or a line is wrong.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a JSONL file of labelled snippets")
    lines = path.read_text(encoding="utf-8").split("\n")
    return [Case.from_json(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def run_cases(cases: Sequence[Case], make: Callable[[], _Suspect]) -> Generator[Finding]:
    """Yield what each snippet did in a session of its own; the interpreter is made among the canaries."""
    with _canaries() as gold:
        interpreter = make()
        try:
            (interpreter.scratch_root / "GOLD_CANARY.txt").write_text(gold, encoding="utf-8")
            known = _processes(interpreter.scratch_root)
            for case in cases:
                execution = interpreter.open().run_to_end(case.code)
                after = _processes(interpreter.scratch_root)
                left = sorted(after.items() - known.items())
                yield Finding(case=case, execution=execution, left_over=tuple(f"{pid} {name}" for pid, name in left))
                known = after  # a process that stays is charged to the snippet that left it
        finally:
            interpreter.close()


@contextmanager
def _canaries() -> Generator[str]:
    with tempfile.TemporaryDirectory() as folder, _loopback_service():
        file = Path(folder) / "FD_CANARY.txt"
        file.write_text(_CANARY, encoding="utf-8")
        before = os.environ.get("EDGE_RL_CANARY")
        os.environ["EDGE_RL_CANARY"] = _CANARY
        descriptor = os.open(file, os.O_RDONLY)
        os.set_inheritable(descriptor, True)
        try:
            yield _CANARY
        finally:
            os.close(descriptor)
            del os.environ["EDGE_RL_CANARY"]
            if before is not None:
                os.environ["EDGE_RL_CANARY"] = before


@contextmanager
def _loopback_service() -> Generator[None]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", CANARY_PORT))
    except OSError:
        listener.close()
        yield  # someone listens there already, which serves as well
        return

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\ncanary")

    listener.listen()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _processes(scratch_root: Path) -> dict[int, str]:
    """Return those that descend from us, or that work below the scratch directories whoever their parent is."""
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            is_ours = process.pid in children or process.cwd().startswith(str(scratch_root))
            if is_ours and process.name() not in _POOL_WORKERS:
                found[process.pid] = process.name()
        except psutil.Error:
            continue  # gone, or of another user
    return found


def summarise(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return counts: rows, right, wrong ones by id, breaches by id."""
    return {
        "rows": len(findings),
        "right": sum(finding.is_right for finding in findings),
        "wrong": [finding.case.id for finding in findings if not finding.is_right],
        "breaches": [finding.case.id for finding in findings if finding.is_breach],
    }
