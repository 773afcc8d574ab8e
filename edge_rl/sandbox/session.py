"""The host's end of one session: send code, collect output and the result, watch the clock. Knows no back end's walls.

Everything that arrives is hostile: replies are JSON of bounded size with the nonce of their call, output is capped
while it is read, and a session that breaks the rules is killed.
"""

import json
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from edge_rl.errors import SandboxError
from edge_rl.sandbox import scratch
from edge_rl.sandbox.inside.removal import remove
from edge_rl.sandbox.inside.worker import HEADER
from edge_rl.sandbox.limits import Limits, explain_exit
from edge_rl.types import Execution, ExecutionStatus

_MAX_REPLY_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16
_TICK_S = 0.1
_MANY_READS, _PAUSE_S = 32, 0.001
_REAP_TIMEOUT_S = 60.0  # a killed process can wait long for a processor
_STATUSES = {status.value: status for status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.DENIED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A confined child, as the host holds it."""

    channel: socket.socket
    stdout: int
    stderr: int
    scratch: Path
    kill: Callable[[], None]
    """Have it killed; returns at once."""


class _Stream:
    """One output stream of a call, kept up to a limit."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = bytearray()
        self.is_cut = False
        self.is_open = True

    def read(self) -> bool:
        """Read what is there; return False when that was nothing."""
        try:
            data = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.is_open = False
            return False
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.is_cut = self.is_cut or len(data) > room
        return True

    def drain(self) -> None:
        """Read what the call left in the pipe; a thread that goes on writing cannot hold us here."""
        while self.is_open and not self.is_cut and self.read():
            pass

    @property
    def text(self) -> str:
        """What was kept; bytes that are no UTF-8 are replaced, and a character cut in two at the limit is left out."""
        data = bytes(self.kept)
        if self.is_cut:
            for back in range(1, 4):
                if data[-back : -back + 1 or None] and data[-back] >= 0xC0:
                    length = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
                    data = data[:-back] if length > back else data
                    break
        return data.decode("utf-8", "replace")


class _Call:
    """One call under way: what has arrived of it."""

    def __init__(self, process: Process, limits: Limits) -> None:
        self.nonce = os.urandom(8).hex()
        self.process = process
        self.limits = limits
        self.stdout = _Stream(process.stdout, limits.output_bytes)
        self.stderr = _Stream(process.stderr, limits.output_bytes)
        self.replies = bytearray()
        self.reads = 0
        self.is_dead = False
        self.outcome: tuple[ExecutionStatus, str] | None = None

    def wait(self, deadline: float) -> None:
        """Collect until the outcome is known or the time is over."""
        poll = select.poll()
        channel = self.process.channel.fileno()
        streams = {stream.descriptor: stream for stream in (self.stdout, self.stderr)}
        for descriptor in (channel, *streams):
            poll.register(descriptor, select.POLLIN)
        next_look = time.monotonic() + _TICK_S
        while self.outcome is None and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(min(left, _TICK_S) * 1_000 + 1):
                if descriptor == channel:
                    self._read_channel()
                    continue
                self._read_stream(streams[descriptor])
                if not streams[descriptor].is_open:
                    poll.unregister(descriptor)
            if self.outcome is None and time.monotonic() >= next_look:
                self._look_at_scratch()
                next_look = time.monotonic() + _TICK_S
        self.stdout.drain()
        self.stderr.drain()

    def _read_stream(self, stream: _Stream) -> None:
        stream.read()
        self.reads += 1
        if self.reads > _MANY_READS:
            time.sleep(_PAUSE_S)  # a program that prints a lot: let lines gather, each wake-up costs both sides

    def _look_at_scratch(self) -> None:
        limits = self.limits
        if scratch.is_over(self.process.scratch, max_bytes=limits.scratch_bytes, max_entries=limits.scratch_entries):
            self._end(ExecutionStatus.ERROR, "OSError: the scratch directory is full; the session was ended")

    def _end(self, status: ExecutionStatus, error: str) -> None:
        self.is_dead = True
        self.outcome = (status, error)

    def _read_channel(self) -> None:
        try:
            data = self.process.channel.recv(_CHUNK_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._end(ExecutionStatus.ERROR, "the interpreter went away; its variables are gone")
            return
        self.replies += data
        while self.outcome is None and len(self.replies) >= HEADER.size:
            (length,) = HEADER.unpack(self.replies[: HEADER.size])
            if length > _MAX_REPLY_BYTES:
                self._end(ExecutionStatus.DENIED, "PermissionError: the code wrote on the result channel")
                return
            if len(self.replies) < HEADER.size + length:
                return
            body = bytes(self.replies[HEADER.size : HEADER.size + length])
            del self.replies[: HEADER.size + length]
            self._accept(_parse(body))

    def _accept(self, message: dict[str, Any]) -> None:
        failed, code = message.get("failed"), message.get("exit")
        status, error = message.get("status"), message.get("error")
        if isinstance(failed, str):
            raise SandboxError(f"sandbox: no session could be set up: {failed}")
        if isinstance(code, int):
            self._end(*explain_exit(code))
        elif message.get("nonce") == self.nonce and status in _STATUSES and isinstance(error, str):
            self.outcome = (_STATUSES[status], error)
        else:
            self._end(ExecutionStatus.DENIED, "PermissionError: the code wrote on the result channel")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", message) if isinstance(message, dict) else {}


class ProcessSession:
    """One isolated interpreter process; its state persists between calls (`edge_rl.types.Session`).

    A session that had to be killed starts afresh at the next call, without its variables and files; the error of the
    call that ended it says so.
    """

    def __init__(self, start: Callable[[], Process], limits: Limits) -> None:
        self._start = start
        self._limits = limits
        self._process: Process | None = start()

    def run(self, code: str) -> Execution:
        """Run code; never raises for what the code does.

        Raises: SandboxError where no interpreter can be had.
        """
        return self._call(code, is_last=False)

    def run_to_end(self, code: str) -> Execution:
        """Run code as the rest of a program: threads, exit handlers and finalisers included. Then close."""
        try:
            return self._call(code, is_last=True)
        finally:
            self.close()

    def _call(self, code: str, *, is_last: bool) -> Execution:
        begun = time.monotonic()
        if self._process is None:
            self._process = self._start()
        call = _Call(self._process, self._limits)
        try:
            self._send({"nonce": call.nonce, "code": code, "last": is_last})
            call.wait(begun + self._limits.timeout_s)
        except BaseException:
            self.close()
            raise
        if call.outcome is None:
            limit = f"{self._limits.timeout_s:g} s"
            call.outcome = ExecutionStatus.TIMEOUT, f"TimeoutError: stopped after {limit}; its variables are gone"
            call.is_dead = True
        if call.is_dead:
            self.close()
        status, error = call.outcome
        if status is ExecutionStatus.OK and (call.stdout.is_cut or call.stderr.is_cut):
            status, error = ExecutionStatus.TRUNCATED, f"output cut after {self._limits.output_bytes} bytes"
        return Execution(status=status, stdout=call.stdout.text, error=error, seconds=time.monotonic() - begun)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        body = json.dumps(request).encode("ascii")
        self._process.channel.settimeout(self._limits.timeout_s)
        try:
            self._process.channel.sendall(HEADER.pack(len(body)) + body)
        except (TimeoutError, ConnectionError):
            return  # it no longer listens; waiting for the reply tells how it ended

    def close(self) -> None:
        """Kill the process, wait until it is gone, and delete its scratch directory.

        Raises: SandboxError if it cannot be killed.
        """
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.kill()
            process.channel.settimeout(_REAP_TIMEOUT_S)
            # Ends only when the child is dead and reaped: no copy of the other end is left then.
            while process.channel.recv(_CHUNK_BYTES):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            raise SandboxError(f"sandbox: a session did not die within {_REAP_TIMEOUT_S:g} s of SIGKILL") from None
        finally:
            process.channel.close()
            os.close(process.stdout)
            os.close(process.stderr)
        remove(process.scratch)

    def __enter__(self) -> "ProcessSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
