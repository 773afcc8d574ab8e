"""The fork server: a small process that has the standard library ready and forks one confined child per session.

Started before anything secret exists in it: a scrubbed environment, no site packages but the preloaded ones, no
inherited descriptors. It never reads or runs model code itself and talks to the host over one socket:
`open` (with three descriptors: result channel, stdout, stderr) and `kill`. It tells the host on the session's own
channel how a session ended, and closes its copy of that channel only after the child is reaped: for the host, the end
of the channel is the proof that nothing is left.
"""

import builtins
import gc
import importlib
import importlib.abc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from edge_rl.sandbox.inside import confine, seccomp, worker
from edge_rl.sandbox.inside.removal import remove

_READY_MODULES = (
    "abc", "ast", "atexit", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv",
    "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "gc", "hashlib", "heapq", "inspect",
    "io", "itertools", "json", "linecache", "math", "numbers", "operator", "pprint", "queue", "random", "re",
    "shutil", "socket", "statistics", "string", "struct", "tempfile", "textwrap", "threading", "time", "traceback",
    "typing", "unicodedata", "uuid",
)  # fmt: skip
# Test modules, terminal and display, what reaches past the interpreter, and large ones that are rarely of use.
_NOT_PRELOADED = (
    "_codecs_", "_crypt", "_ctypes", "_curses", "_posixshmem", "_ssl", "_test", "_tkinter", "_xx", "nis", "ossaudiodev",
    "readline", "spwd", "syslog", "termios", "xxlimited",
)  # fmt: skip
_FRAME_DESCRIPTOR = 3
_forgotten: list[ModuleType] = []  # taken out of sys.modules, but still in use here


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the host wants, as it arrives in JSON on the command line."""

    control: int
    """Descriptor of the socket to the host."""
    scratch_root: str
    """Directory that holds the scratch directories of all sessions."""
    confined: bool
    """False: limits only (`unsafe`)."""
    namespaces: bool
    """Whether to enter namespaces of its own (bubblewrap has already done so)."""
    preload: list[str]
    """Packages to import beforehand."""
    package_paths: list[str]
    """Where those packages are looked for."""
    memory_bytes: int
    file_bytes: int
    cpu_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wall:
    """What each session needs to be confined, worked out once."""

    landlock_abi: int
    readable_roots: list[str]
    seccomp_filter: bytes | None


def main() -> None:
    """Run until the host closes the control socket."""
    setup = Setup(**json.loads(sys.argv[1]))
    packages = _preload(setup)
    layers: dict[str, Any] = {"namespaces": [], "landlock": 0, "seccomp": False}
    with socket.socket(fileno=setup.control) as control:
        try:
            wall = _confine_server(setup, packages, layers)
        except OSError as error:
            worker.write_frame(control.fileno(), {"failed": str(error)})
            return
        worker.write_frame(control.fileno(), {"layers": layers})
        _dress_for_sessions(confined=setup.confined)
        gc.collect()
        gc.freeze()
        _Server(control, setup, wall).serve()


def _confine_server(setup: Setup, packages: list[str], layers: dict[str, Any]) -> _Wall:
    if not setup.confined:
        return _Wall(landlock_abi=0, readable_roots=[], seccomp_filter=None)
    confine.load_helpers()
    confine.prefer_as_oom_victim()
    if setup.namespaces:
        layers["namespaces"] = confine.enter_namespaces()
        if "pid" in layers["namespaces"]:
            _become_first_process(setup.control)
    confine.forbid_new_privileges()
    confine.drop_capabilities()
    stdlib = sysconfig.get_paths()["stdlib"]
    entries = [entry.path for entry in os.scandir(stdlib) if entry.name not in ("site-packages", "dist-packages")]
    layers["landlock"] = confine.restrict_server_files([*entries, *packages], setup.scratch_root)
    layers["seccomp"] = seccomp.is_supported()
    program = seccomp.build_filter(truncate_is_covered=layers["landlock"] >= 3) if seccomp.is_supported() else None
    return _Wall(landlock_abi=layers["landlock"], readable_roots=[stdlib, *packages], seccomp_filter=program)


def _become_first_process(control: int) -> None:
    # A pid namespace begins with the next child: that child goes on as the server, this process waits for it.
    child = os.fork()
    if child == 0:
        return
    os.close(control)
    os.closerange(0, 3)
    os.waitpid(child, 0)
    os._exit(0)


def _preload(setup: Setup) -> list[str]:
    dynamic = sysconfig.get_paths()["stdlib"] + "/lib-dynload"
    compiled = [module.name for module in pkgutil.iter_modules([dynamic])]
    for name in (*_READY_MODULES, *(name for name in compiled if not name.startswith(_NOT_PRELOADED))):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # this build of Python lacks it
    sys.path += setup.package_paths
    for name in setup.preload:
        importlib.import_module(name)
    for path in setup.package_paths:
        sys.path.remove(path)
    found: set[str] = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        for path in setup.package_paths:
            if file.startswith(path + os.sep):
                found.add(str(Path(path) / Path(file).relative_to(path).parts[0]))
    return sorted(found)


def _do_nothing(_signal: int, _frame: FrameType | None) -> None:
    """Only the wake-up descriptor matters."""


class _Server:
    def __init__(self, control: socket.socket, setup: Setup, wall: _Wall) -> None:
        self._control = control
        self._setup = setup
        self._wall = wall
        self._children: dict[int, tuple[int, int]] = {}  # pid: (session number, copy of its channel)
        self._killed: set[int] = set()
        self._wakeup, alarm = socket.socketpair()
        self._wakeup.setblocking(False)
        alarm.setblocking(False)
        self._alarm = alarm
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._control, self._wakeup], [], [])
            if self._wakeup in ready:
                self._wakeup.recv(4096)
                self._reap()
            if self._control in ready:
                header, descriptors, _, _ = socket.recv_fds(self._control, worker.HEADER.size, 3)
                if not header:
                    break
                request = worker.read_body(self._control.fileno(), header)
                if request["op"] == "open":
                    self._open(request, descriptors)
                else:
                    self._kill(request["session"])
        self._end()

    def _end(self) -> None:
        # Whether the host closed the socket or died: its sessions go, and what they wrote.
        for pid in self._children:
            _kill_group(pid)
        for pid in self._children:
            os.waitpid(pid, 0)
        for entry in Path(self._setup.scratch_root).iterdir():
            if entry.is_dir() and not entry.is_symlink():
                remove(entry)

    def _open(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        channel, stdout, stderr = descriptors
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            worker.write_frame(channel, {"failed": f"fork: {error}"})
            for descriptor in descriptors:
                os.close(descriptor)
            return
        if pid == 0:
            _become_session(self._setup, self._wall, (channel, stdout, stderr), request["scratch"], server)
        os.close(stdout)
        os.close(stderr)
        self._children[pid] = (request["session"], channel)

    def _kill(self, session: int) -> None:
        for pid, (number, _) in self._children.items():
            if number == session:
                _kill_group(pid)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._children:  # else an orphan of a session, handed to us as first process
                _, channel = self._children.pop(pid)
                os.set_blocking(channel, False)
                try:  # noqa: SIM105 - the reason belongs beside the pass
                    worker.write_frame(channel, {"exit": os.waitstatus_to_exitcode(status)})
                except OSError:
                    pass  # the host let go, or the channel is full: it sees the end of the channel all the same
                os.close(channel)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # not yet the leader of its group, or already dead; it is reaped either way


def _become_session(
    setup: Setup, wall: _Wall, descriptors: tuple[int, int, int], scratch: str, server: int
) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        channel = _arrange_descriptors(*descriptors)
        os.chdir(scratch)
        os.environ.clear()
        os.environ.update({"HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"})
        sys.argv[:] = [""]
        sys.path.insert(0, scratch)
        _confine_session(setup, wall, scratch, server)
        _reseed()
        sys.stdout = sys.__stdout__ = _text_stream(1)
        sys.stderr = sys.__stderr__ = _text_stream(2)
    except BaseException as error:  # noqa: BLE001 - whatever it was, no code may run in a half-built wall
        worker.write_frame(_FRAME_DESCRIPTOR, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    worker.serve(channel)


def _exit(code: object = None) -> NoReturn:
    """End the call, as in a plain interpreter."""
    raise SystemExit(code)


def _text_stream(descriptor: int) -> io.TextIOWrapper:
    # Lone surrogates are printed escaped, not an error; each line is written at once, so that a timeout keeps it.
    raw = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _arrange_descriptors(channel: int, stdout: int, stderr: int) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    # First to high numbers, so that no target is overwritten before it is moved.
    moved = [os.dup(descriptor) for descriptor in (null, stdout, stderr, channel)]
    while min(moved) <= _FRAME_DESCRIPTOR:
        moved = [os.dup(descriptor) for descriptor in moved]
    for target, descriptor in enumerate(moved):
        os.dup2(descriptor, target)
    os.closerange(_FRAME_DESCRIPTOR + 1, 4096)
    return _FRAME_DESCRIPTOR


def _confine_session(setup: Setup, wall: _Wall, scratch: str, server: int) -> None:
    confine.set_limits(memory_bytes=setup.memory_bytes, file_bytes=setup.file_bytes, cpu_s=setup.cpu_s)
    if not setup.confined:
        return
    confine.tie_to_parent(server)
    confine.restrict_session_files(wall.landlock_abi, wall.readable_roots, scratch)
    if wall.seccomp_filter is not None:
        seccomp.install(wall.seccomp_filter)


class _Refusal(importlib.abc.MetaPathFinder):
    """Refuses modules that would only lead to a crash here, with a message that says so."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in worker.BLOCKED_MODULES:
            raise ImportError(f"{fullname} is not available in the sandbox", name=fullname.partition(".")[0])
        return None


def _refuse_program(command: object) -> NoReturn:
    raise PermissionError(1, "running programs is not allowed in the sandbox")


def _dress_for_sessions(*, confined: bool) -> None:
    # Done here once: whatever a session changes in inherited memory costs it a page.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes", "edge_rl")]:
        _forgotten.append(sys.modules.pop(name))
    builtins.exit = builtins.quit = _exit  # site, which defines them, is left out
    if confined:
        # Convenience, not a boundary: a plain message instead of a strange failure.
        sys.meta_path.insert(0, _Refusal())
        for module in ("posix", "os"):
            setattr(importlib.import_module(module), "system", _refuse_program)  # noqa: B010 - no stub has it settable


def _reseed() -> None:
    # `random` reseeds itself after a fork; numpy's global generator would be the same in every session.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
