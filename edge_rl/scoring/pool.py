"""Tasks that may not end, run in processes that can be killed. Knows no task and no verdict.

One pool per process, started at first use and shared by all threads. A late task costs its process, never the caller's.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edge_rl.errors import VerifierError
from edge_rl.scoring.expressions.nodes import Node, encode, number

LIMIT_S = 0.8
"""Time of one task; with what runs in the caller a verdict stays within a second."""
NUM_CHILDREN = max(2, min(8, os.cpu_count() or 2))
SHORTEST_S = 0.05
LONGEST_QUEUE_S = 600.0


class TaskTimeoutError(VerifierError):
    """A task did not end in time and was killed."""


class Pool:
    """A supervisor process and the results that callers wait for."""

    def __init__(self, num_children: int = NUM_CHILDREN) -> None:
        if not hasattr(os, "fork"):
            raise VerifierError("symbolic verdicts need a system with fork (Linux or macOS); use kind numeric or text")
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._next_id = 0
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edge_rl.scoring.worker", str(num_children)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": root, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="verifier pool", daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor still runs."""
        return self._process.poll() is None

    def call(self, task: str, payload: Any, limit_s: float = LIMIT_S) -> Any:
        """Return the result of a task.

        Raises: TaskTimeoutError if it did not end in time; VerifierError if it failed or its process died.
        """
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            job_id = self._next_id = self._next_id + 1
            self._waiting[job_id] = future
            line = json.dumps({"id": job_id, "task": task, "payload": payload, "limit_s": limit_s}) + "\n"
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
            except OSError:
                self._waiting.pop(job_id, None)
                raise VerifierError("the verifier pool has ended") from None
        try:
            reply = future.result(timeout=LONGEST_QUEUE_S)
        except FutureTimeoutError:
            self._process.kill()
            self._process.wait()
            raise VerifierError("the verifier pool does not answer") from None
        if reply["status"] == "timeout":
            raise TaskTimeoutError(f"{task} took more than {limit_s} s")
        if reply["status"] != "ok":
            raise VerifierError(f"{task}: {reply['result'] or 'its process died'}")
        return reply["result"]

    def close(self) -> None:
        """End the supervisor and its children."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                future = self._waiting.pop(reply["id"], None)
            if future is not None:
                future.set_result(reply)
        with self._lock:
            lost = list(self._waiting.values())
            self._waiting.clear()
        for future in lost:
            future.set_result({"status": "died", "result": None})


class _Shared:
    """The pool of this process; a process forked from it makes its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pool: Pool | None = None
        self.owner = 0


_shared = _Shared()


def shared_pool() -> Pool:
    """Return the running pool of this process, started if need be."""
    with _shared.lock:
        if _shared.pool is None or _shared.owner != os.getpid() or not _shared.pool.is_alive:
            _shared.pool, _shared.owner = Pool(), os.getpid()
        return _shared.pool


def start_pool() -> None:
    """Start the pool now, so that the first verdict does not wait for the algebra to load; returns at once."""
    if hasattr(os, "fork"):
        shared_pool()


def warm_pool() -> None:
    """Start the pool and wait until it answers: for measurements, where the first verdict should not pay for the start."""
    one = number(1)
    prove_equal(one, one)


def close_pool() -> None:
    """End the pool of this process, if there is one; the next task starts another."""
    with _shared.lock:
        if _shared.pool is not None and _shared.owner == os.getpid():
            _shared.pool.close()
        _shared.pool = None


class _Budget(threading.local):
    """Seconds that the proofs of one verdict may still take in this thread; None outside of a verdict."""

    left: float | None = None


_budget = _Budget()


@contextmanager
def one_verdict() -> Generator[None]:
    """Share one limit among all proofs inside: a set of towers costs no more than one of them."""
    outer, _budget.left = _budget.left, LIMIT_S
    try:
        yield
    finally:
        _budget.left = outer


def prove_equal(left: Node, right: Node) -> dict[str, bool | None]:
    """Return what each algebra says of left = right: {"sympy": ..., "math_verify": ...}; None where it cannot tell.

    A time-out is "cannot tell". Raises: VerifierError if the pool itself fails.
    """
    limit = LIMIT_S if _budget.left is None else _budget.left
    undecided: dict[str, bool | None] = {"sympy": None, "math_verify": None}
    if limit < SHORTEST_S:
        return undecided
    start = time.monotonic()
    used = limit
    try:
        result = shared_pool().call("prove", [encode(left), encode(right)], limit_s=limit)
        used = min(limit, time.monotonic() - start)
    except TaskTimeoutError:
        return undecided
    finally:
        if _budget.left is not None:
            _budget.left -= used
    return result


atexit.register(close_pool)
