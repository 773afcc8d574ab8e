"""Runs untrusted Python: the interpreter that rollouts and code verifiers use.

First version: a plain child process per session (no isolation beyond limits). It is replaced by the confined one.
"""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from edge_rl.errors import SandboxError
from edge_rl.sandbox.inside import worker
from edge_rl.types import Execution, ExecutionStatus, Interpreter

_START = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, 100 << 20))
sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
runpy.run_path(sys.argv[1])["serve"](int(sys.argv[2]))
"""
_MAX_OUTPUT = 1 << 20


class _PlainSession:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._scratch = tempfile.mkdtemp(prefix="edge_rl-")
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, "-s", "-S", "-P", "-X", "utf8", "-c", _START, worker.__file__, str(theirs.fileno())]
        child = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch,
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        theirs.close()
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        return child

    def run(self, code: str) -> Execution:
        """Run code; state persists."""
        begun = time.monotonic()
        if self._child is None:
            self._child = self._start()
        assert self._child.stdout is not None
        nonce = os.urandom(8).hex()
        body = json.dumps({"nonce": nonce, "code": code}).encode()
        self._channel.settimeout(self._timeout_s)
        self._channel.sendall(worker.HEADER.pack(len(body)) + body)
        stdout, reply, status, error = bytearray(), bytearray(), ExecutionStatus.TIMEOUT, ""
        out, channel = self._child.stdout.fileno(), self._channel.fileno()
        while (left := begun + self._timeout_s - time.monotonic()) > 0:
            ready, _, _ = select.select([out, channel], [], [], left)
            if out in ready:
                piece = os.read(out, 1 << 16)
                stdout += piece
                if not piece:
                    ready = [channel]
            elif channel in ready:
                piece = self._channel.recv(1 << 16)
                reply += piece
                if not piece:
                    status, error = ExecutionStatus.ERROR, "the interpreter process died"
                    break
                if len(reply) >= 4 and len(reply) == 4 + int.from_bytes(reply[:4], "big"):
                    message = json.loads(reply[4:])
                    status, error = ExecutionStatus(message["status"]), message["error"]
                    break
        if status is ExecutionStatus.TIMEOUT:
            error = f"TimeoutError: stopped after {self._timeout_s:g} s"
            self.close()
        elif self._child.poll() is not None:
            self.close()
        if len(stdout) > _MAX_OUTPUT and status is ExecutionStatus.OK:
            status, error = ExecutionStatus.TRUNCATED, f"output cut after {_MAX_OUTPUT} bytes"
        text = stdout[:_MAX_OUTPUT].decode("utf-8", "replace")
        return Execution(status=status, stdout=text, error=error, seconds=time.monotonic() - begun)

    def close(self) -> None:
        """Kill the process and remove its scratch directory."""
        if self._child is None:
            return
        assert self._child.stdout is not None
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._child.wait()
        self._child.stdout.close()
        self._channel.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._child = None


class _PlainInterpreter:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def open(self) -> _PlainSession:
        """Return a fresh session."""
        return _PlainSession(self._timeout_s)


def make_interpreter(backend: str = "auto", *, timeout_s: float = 5.0) -> Interpreter:
    """Return an interpreter of the given back end.

    Raises: SandboxError for an unknown back end.
    """
    if backend not in ("auto", "subprocess"):
        raise SandboxError(f"back end {backend!r} does not exist; known: auto, subprocess")
    return _PlainInterpreter(timeout_s)


__all__ = ["make_interpreter"]
