"""The process that runs what may not end: computer algebra, a user's pattern, a user's function. Knows no verdict.

`python -m edge_rl.scoring.worker CHILDREN` loads the algebra once and forks children that answer one task at a time. It
reads jobs as JSON lines from stdin and writes results to stdout. It runs no task itself: it only hands jobs out, watches
the clock, kills a child that is late with all it started, reaps it and forks the next, which takes milliseconds.

Late means: past its limit on the wall clock, unless the child is waiting for a processor on a busy machine and has used
less processor time than the limit. So a verdict does not depend on what else runs.
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_rl.scoring.expressions.symbolic import prove, warm_up
from edge_rl.scoring.user_code import call_user_verifier, search_pattern

MEMORY_BYTES = 2 << 30
JOBS_PER_CHILD = 400
"""A child is replaced after so many jobs: the algebra's caches grow, the process that forks does not."""
LONGEST_WAIT_S = 3_600.0
LONGEST_STARVATION = 8.0
"""No job lasts longer than so many times its limit, however busy the machine."""
RECHECK_S = 0.1
TASKS: Mapping[str, Callable[[Any], Any]] = {
    "prove": prove,
    "pattern": search_pattern,
    "user_verifier": call_user_verifier,
}


@dataclass(slots=True)
class Child:
    """One forked process and the job it has."""

    pid: int
    channel: socket.socket
    received: bytes = b""
    job_id: int | None = None
    deadline: float = 0.0
    last_deadline: float = 0.0
    limit_s: float = 0.0
    cpu_at_start: float = 0.0
    num_jobs: int = 0


class Supervisor:
    """Hands jobs to children and kills the late ones."""

    def __init__(self, num_children: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._waiting: deque[dict[str, Any]] = deque()
        self._received = b""
        self._children = [self._fork() for _ in range(num_children)]

    def run(self) -> None:
        """Serve until stdin closes."""
        while True:
            busy = [child.deadline for child in self._children if child.job_id is not None]
            timeout = max(0.0, min(busy) - time.monotonic()) if busy else LONGEST_WAIT_S
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    if not self._read_jobs():
                        return
                else:
                    self._read_result(key.data)
            self._kill_late()
            self._hand_out()

    def close(self) -> None:
        """End every child."""
        for child in self._children:
            self._end(child)

    def _read_jobs(self) -> bool:
        data = os.read(sys.stdin.fileno(), 1 << 20)
        *lines, self._received = (self._received + data).split(b"\n")
        self._waiting.extend(json.loads(line) for line in lines)
        return bool(data)

    def _hand_out(self) -> None:
        for place, child in enumerate(self._children):
            if not self._waiting:
                return
            if child.job_id is not None:
                continue
            if child.num_jobs >= JOBS_PER_CHILD:
                child = self._replace(place)
            job = self._waiting.popleft()
            child.job_id, child.limit_s = job["id"], job["limit_s"]
            child.deadline = time.monotonic() + child.limit_s
            child.last_deadline = time.monotonic() + child.limit_s * LONGEST_STARVATION
            child.cpu_at_start = _usage(child.pid)[0]
            child.num_jobs += 1
            try:
                child.channel.sendall(json.dumps([job["task"], job["payload"]]).encode() + b"\n")
            except OSError:
                self._lose(child, "died")

    def _read_result(self, child: Child) -> None:
        try:
            data = child.channel.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._lose(child, "died")
            return
        child.received += data
        if child.received.endswith(b"\n"):
            _report(child.job_id, *json.loads(child.received))
            child.received, child.job_id = b"", None

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.job_id is None or child.deadline > now:
                continue
            if now < child.last_deadline and _is_starved(child):
                child.deadline = now + RECHECK_S
            else:
                self._lose(child, "timeout")

    def _lose(self, child: Child, status: str) -> None:
        if child.job_id is not None:
            _report(child.job_id, status, None)
        self._replace(self._children.index(child))

    def _replace(self, place: int) -> Child:
        self._end(self._children[place])
        self._children[place] = self._fork()
        return self._children[place]

    def _end(self, child: Child) -> None:
        with suppress(KeyError):
            self._selector.unregister(child.channel)
        child.channel.close()
        # The child leads its own process group, so whatever it started ends with it.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)

    def _fork(self) -> Child:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        with suppress(OSError):
            os.setpgid(pid, pid)
        child = Child(pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, child)
        return child


def main() -> None:
    """Serve jobs until the parent closes stdin or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()
    supervisor = Supervisor(int(sys.argv[1]))
    try:
        supervisor.run()
    finally:
        supervisor.close()


def _is_starved(child: Child) -> bool:
    cpu_s, is_runnable = _usage(child.pid)
    return is_runnable and cpu_s - child.cpu_at_start < child.limit_s


def _usage(pid: int) -> tuple[float, bool]:
    """Return (processor seconds used, whether it wants to run); (0, False) where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0, False
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "R"


def _report(job_id: int | None, status: str, result: Any) -> None:
    line = json.dumps({"id": job_id, "status": status, "result": result}) + "\n"
    data = line.encode()
    while data:
        data = data[os.write(1, data) :]


def _serve(channel: socket.socket) -> None:
    """Answer jobs in a child; never returns."""
    try:
        _confine(channel.fileno())
        received = b""
        while data := channel.recv(1 << 20):
            received += data
            if received.endswith(b"\n"):
                task, payload = json.loads(received)
                received = b""
                channel.sendall(json.dumps(_answer(task, payload)).encode() + b"\n")
    finally:
        os._exit(0)


def _answer(task: str, payload: Any) -> tuple[str, Any]:
    try:
        return "ok", TASKS[task](payload)
    except MemoryError:
        return "error", "out of memory"
    except Exception as error:  # noqa: BLE001 - the boundary: a task that fails is a result
        return "error", f"{type(error).__name__}: {error}"[:500]


def _confine(channel: int) -> None:
    with suppress(OSError):
        os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, channel)
    os.closerange(channel + 1, channel + 256)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _die_with_parent()


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(0)


if __name__ == "__main__":
    main()
