"""What a session may use, and how its end is told. Knows no back end."""

import signal
from dataclasses import dataclass

from edge_rl.errors import SandboxError
from edge_rl.sandbox.inside.worker import EXIT_OUT_OF_MEMORY
from edge_rl.types import ExecutionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one session."""

    timeout_s: float = 5.0
    """Wall-clock seconds of one call; after it the session is killed."""
    memory_bytes: int = 1 << 30
    """Address space."""
    output_bytes: int = 1 << 20
    """Of stdout and of stderr, per call; what exceeds it is thrown away."""
    file_bytes: int = 100 << 20
    """Largest single file."""
    scratch_bytes: int = 200 << 20
    """All files of the scratch directory together; looked at while a call runs."""
    scratch_entries: int = 10_000
    """Files and directories in the scratch directory."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise SandboxError(f"timeout_s is {self.timeout_s}; it must be above 0")
        if self.memory_bytes < 64 << 20:
            raise SandboxError(f"memory_bytes is {self.memory_bytes}; Python needs at least {64 << 20}")

    @property
    def cpu_s(self) -> int:
        """CPU seconds of a whole session: a backstop for threads that run on between calls."""
        return max(60, int(12 * self.timeout_s))


def explain_exit(code: int) -> tuple[ExecutionStatus, str]:
    """Return the status and the one-line error for a process that ended before it replied.

    `code` is an exit status, or a signal number negated.
    """
    if code == 0:
        return ExecutionStatus.OK, ""  # os._exit(0): an end with status 0 is a normal end
    if code == EXIT_OUT_OF_MEMORY:
        return ExecutionStatus.ERROR, "MemoryError: the session ran out of memory and was restarted"
    if code > 0:
        return ExecutionStatus.ERROR, f"SystemExit: {code}"
    if code == -signal.SIGXCPU:
        return ExecutionStatus.TIMEOUT, "TimeoutError: the session used up its CPU seconds"
    name = signal.Signals(-code).name
    if code == -signal.SIGSYS:
        return ExecutionStatus.DENIED, f"PermissionError: killed by {name} for a forbidden system call"
    return ExecutionStatus.ERROR, f"the interpreter was killed by {name}; its variables are gone"
