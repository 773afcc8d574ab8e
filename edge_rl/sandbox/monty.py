"""The back end `monty`: a subset of Python in worker processes (package `pydantic-monty`). Any operating system.

The subset's interpreter has no way to the host but the scratch directory that is mounted for it. What a program cannot
use there (yield, del, exit handlers, threads, many standard modules) is an error that names it.
"""

import importlib.metadata
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from edge_rl.errors import SandboxError, require
from edge_rl.sandbox import scratch
from edge_rl.sandbox.inside.removal import remove
from edge_rl.sandbox.limits import Limits
from edge_rl.types import Execution, ExecutionStatus

_MAX_ERROR_CHARS = 2_000
_MAX_PROCESSES = 4096  # a session holds a worker; the pool must never make one wait for another
_GRACE_S = 1.0


class _Output:
    """What a call prints, kept up to a limit per stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._room = {"stdout": limit, "stderr": limit}
        self.is_cut = False

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        self.is_cut = self.is_cut or len(data) > self._room[stream]
        self._kept[stream].append(data[: self._room[stream]])
        self._room[stream] -= len(self._kept[stream][-1])

    @property
    def stdout(self) -> str:
        # Whole characters came in, so only the cut can have left half of one.
        return b"".join(self._kept["stdout"]).decode("utf-8", "ignore")


class MontySession:
    """One session in a worker of the pool; its state persists between calls (`edge_rl.types.Session`)."""

    def __init__(self, monty: Any, pool: Any, limits: Limits, root: Path) -> None:
        self._monty = monty
        self._pool = pool
        self._limits = limits
        self._root = root
        self._session: Any = None
        self._start()

    def _start(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(dir=self._root))
        limits = {"max_feed_duration_secs": self._limits.timeout_s, "max_memory": self._limits.memory_bytes}
        limits["max_suspensions"] = 1_000_000
        self._mount = self._monty.MountDir(
            host_path=self._scratch,
            virtual_path="/scratch",
            mode="read-write",
            write_bytes_limit=self._limits.file_bytes,
        )
        self._session = self._pool.checkout(limits=limits, os_policy={"sleep": "call_host"})
        self._session.__enter__()

    def run(self, code: str) -> Execution:
        """Run code; never raises for what the code does."""
        begun = time.monotonic()
        if self._session is None:
            self._start()
        output = _Output(self._limits.output_bytes)
        status, error = self._feed(code, output, begun + self._limits.timeout_s)
        if status is ExecutionStatus.OK and output.is_cut:
            status, error = ExecutionStatus.TRUNCATED, f"output cut after {self._limits.output_bytes} bytes"
        return Execution(status=status, stdout=output.stdout, error=error, seconds=time.monotonic() - begun)

    def run_to_end(self, code: str) -> Execution:
        """Run code and close; the subset has no exit handlers."""
        try:
            return self.run(code)
        finally:
            self.close()

    def _feed(self, code: str, output: _Output, deadline: float) -> tuple[ExecutionStatus, str]:
        def answer(*, name: str, args: tuple[Any, ...], **_: Any) -> Any:
            if name != "time.sleep":
                return self._monty.NOT_HANDLED
            if time.monotonic() + args[0] > deadline:
                time.sleep(max(0.0, deadline - time.monotonic()))
                raise TimeoutError(f"stopped after {self._limits.timeout_s:g} s")
            time.sleep(args[0])
            return None

        try:
            self._session.feed_run(code, print_callback=output, mount=self._mount, cwd=None, os=answer)
        except self._monty.MontyCrashedError as error:
            self.close()
            if error.timed_out:
                return self._timeout()
            return ExecutionStatus.ERROR, "the interpreter died; its variables are gone"
        except (self._monty.MontyRuntimeError, self._monty.MontySyntaxError) as error:
            return self._explain(error, is_over=time.monotonic() >= deadline)
        limits = self._limits
        if scratch.is_over(self._scratch, max_bytes=limits.scratch_bytes, max_entries=limits.scratch_entries):
            self.close()
            return ExecutionStatus.ERROR, "OSError: the scratch directory is full; the session was ended"
        return ExecutionStatus.OK, ""

    def _explain(self, error: Any, *, is_over: bool) -> tuple[ExecutionStatus, str]:
        inner = error.exception()
        if isinstance(inner, TimeoutError) and is_over:
            self.close()
            return self._timeout()
        if isinstance(inner, SystemExit) and str(inner) in ("", "0", "None"):
            return ExecutionStatus.OK, ""
        line = " ".join(error.display("type-msg").split())[:_MAX_ERROR_CHARS]
        denied = isinstance(inner, PermissionError) or "is not supported in this environment" in line
        return (ExecutionStatus.DENIED if denied else ExecutionStatus.ERROR), line

    def _timeout(self) -> tuple[ExecutionStatus, str]:
        limit = f"{self._limits.timeout_s:g} s"
        return ExecutionStatus.TIMEOUT, f"TimeoutError: stopped after {limit}; its variables are gone"

    def close(self) -> None:
        """Give the worker back and delete the scratch directory."""
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)
            self._mount.close()
            remove(self._scratch)

    def __enter__(self) -> "MontySession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MontyInterpreter:
    """Opens sessions of the subset (`edge_rl.types.Interpreter`).

    Raises: MissingExtraError if pydantic-monty is not installed; SandboxError if its workers do not start.
    """

    def __init__(self, limits: Limits, preload: Sequence[str] = ()) -> None:
        if preload:
            raise SandboxError(f"sandbox: monty cannot load packages, but preload is {', '.join(preload)}; use Linux")
        self._monty: Any = require("pydantic_monty", "sandbox")
        self._limits = limits
        self._lock = threading.Lock()
        self._root = scratch.make_root()
        # The worker stops itself at the limit; one that does not is killed a little later.
        pool = self._monty.Monty(max_processes=_MAX_PROCESSES, request_timeout=limits.timeout_s + _GRACE_S)
        try:
            self._pool: Any = pool.__enter__()
        except (OSError, RuntimeError, self._monty.MontyError) as error:
            raise SandboxError(f"sandbox: monty's workers do not start: {error}") from error
        self._finalizer = weakref.finalize(self, _stop, pool, self._root)

    def open(self) -> MontySession:
        """Return a fresh session."""
        return MontySession(self._monty, self._pool, self._limits, self._root)

    @property
    def scratch_root(self) -> Path:
        """Directory that holds the scratch directories of all sessions."""
        return self._root

    def describe(self) -> dict[str, Any]:
        """Return what is active, for people and for the manifest of a run."""
        return {
            "backend": "monty",
            "pydantic-monty": importlib.metadata.version("pydantic-monty"),
            "language": "a subset of Python",
            "limits": asdict(self._limits),
        }

    def close(self) -> None:
        """End all workers."""
        self._finalizer()

    def __enter__(self) -> "MontyInterpreter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stop(pool: Any, root: Path) -> None:
    pool.__exit__(None, None, None)
    shutil.rmtree(root, ignore_errors=True)
