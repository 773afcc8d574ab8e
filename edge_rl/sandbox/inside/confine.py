"""The layers between model code and the host, in the order they are put on. Knows what each layer is for.

Some layers are put on the fork server once and inherited (namespaces, capabilities, Landlock over everything that any
session may touch); the rest is put on each session. A layer that this machine lacks is left out and reported; which
layers must be there is the host's decision.
"""

import ctypes
import os
import resource
import signal
import socket
from pathlib import Path

from edge_rl.sandbox.inside import landlock

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 4, 38, 24
_CAPABILITIES_V3 = 0x20080522
_LAST_CAPABILITY = 63
_NAMESPACES = {
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
_HARMLESS_FILES = ("/etc/localtime", "/usr/share/zoneinfo", "/dev/zero", "/dev/urandom", "/dev/random")
_MAX_TASKS = 4096  # of the user, threads of all sessions included: a backstop

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def _unshare(flags: int) -> bool:
    return _libc.unshare(ctypes.c_int(flags)) == 0


def enter_namespaces() -> list[str]:
    """Move this process (pid: its next child) into namespaces of its own; return those that the machine allowed."""
    user, group = os.geteuid(), os.getegid()
    entered: list[str] = []
    if _unshare(_NAMESPACES["user"]):
        entered.append("user")
        for path, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path(f"/proc/self/{path}").write_text(text, encoding="ascii")
    for name, flag in _NAMESPACES.items():
        if name != "user" and _unshare(flag):
            entered.append(name)
    if "uts" in entered:
        socket.sethostname("sandbox")
    return entered


def drop_capabilities() -> None:
    """Give up every capability of this process, and the means to regain one.

    Raises: OSError where the kernel refuses.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3):
            break  # the first one this kernel does not know, or nothing to drop for an ordinary user
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()):
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def prefer_as_oom_victim() -> None:
    """Let the kernel take a session before the trainer when the machine runs out of memory."""
    try:
        Path("/proc/self/oom_score_adj").write_text("800", encoding="ascii")
    except OSError:
        return  # no /proc: only the order of victims is lost


def forbid_new_privileges() -> None:
    """Make set-uid programs and file capabilities without effect, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def restrict_server_files(readable: list[str], scratch_root: str) -> int:
    """Deny the server and all its sessions every path but `readable` and the scratch directories.

    Returns Landlock's version. Fine-grained and put on once; 0 = Landlock is not there, and nothing was restricted.
    """
    version = landlock.abi()
    if version:
        rules = [(path, landlock.READ) for path in (*readable, *_HARMLESS_FILES)]
        landlock.restrict(version, [*rules, ("/dev/null", landlock.WRITE), (scratch_root, landlock.WRITE)])
    return version


def restrict_session_files(version: int, readable_roots: list[str], scratch: str) -> None:
    """Deny this session the scratch directories of the others; a second, coarser layer, so that it is quick."""
    if version:
        rules = [(path, landlock.READ) for path in (*readable_roots, *_HARMLESS_FILES)]
        landlock.restrict(version, [*rules, ("/dev/null", landlock.WRITE), (scratch, landlock.WRITE)])


def tie_to_parent(parent: int) -> None:
    """Die when the parent dies; unreadable and untraceable for processes of the same user."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    _prctl(_PR_SET_DUMPABLE, 0)


def set_limits(*, memory_bytes: int, file_bytes: int, cpu_s: int) -> None:
    """Bound this process for good: address space, file size, CPU seconds, descriptors, tasks, no core file."""
    wanted = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (file_bytes, file_bytes),
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_NPROC: (_MAX_TASKS, _MAX_TASKS),
        resource.RLIMIT_MEMLOCK: (0, 0),
        # SIGXCPU at the soft limit tells it apart; the hard one takes a process that ignores it.
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (memory_bytes, memory_bytes),
    }
    for limit, (soft, hard) in wanted.items():
        _, ceiling = resource.getrlimit(limit)
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        try:
            resource.setrlimit(limit, (soft, hard))
        except (ValueError, OSError):
            if limit not in (resource.RLIMIT_AS, resource.RLIMIT_NPROC):  # macOS knows these two but cannot set them
                raise


def load_helpers() -> None:
    """Load what the C library would load late, when new machine code is no longer allowed."""
    for name in ("libgcc_s.so.1",):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue  # musl has no such library and needs none
