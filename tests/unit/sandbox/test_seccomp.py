"""The filter, run through a small model of the kernel's filter machine: no kernel needed, both architectures."""

import errno
import platform
import struct

import pytest

from edge_rl.sandbox.inside import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
X86_64, AARCH64 = 0xC000003E, 0xC00000B7
OWN_PID = 4321


def decide(program: bytes, number: int, arguments: tuple[int, ...] = (), architecture: int = X86_64) -> int:
    """Return the verdict of a filter on one system call."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += if_true if holds else if_false


def filter_for(machine: str, monkeypatch: pytest.MonkeyPatch, *, truncate_is_covered: bool = True) -> bytes:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    program = seccomp.build_filter(truncate_is_covered=truncate_is_covered)
    return program.replace(struct.pack("=I", seccomp._OWN_PID), struct.pack("=I", OWN_PID))  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> bytes:
    return filter_for("x86_64", monkeypatch)


@pytest.mark.parametrize(
    ("number", "arguments", "verdict"),
    [
        (0, (), ALLOW),  # read
        (231, (), ALLOW),  # exit_group
        (318, (), ALLOW),  # getrandom
        (59, (), EPERM),  # execve
        (57, (), EPERM),  # fork
        (56, (17,), EPERM),  # clone of a process (SIGCHLD)
        (56, (0x3D0F00,), ALLOW),  # clone of a thread, as glibc makes one
        (435, (), ENOSYS),  # clone3
        (41, (2, 1, 0), EPERM),  # socket
        (53, (1, 0x80801, 0), ALLOW),  # socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
        (53, (1, 2, 0), EPERM),  # socketpair(AF_UNIX, SOCK_DGRAM)
        (53, (1, 5, 0), EPERM),  # socketpair(AF_UNIX, SOCK_SEQPACKET)
        (53, (2, 1, 0), EPERM),  # socketpair(AF_INET, SOCK_STREAM)
        (44, (5, 9, 1, 0, 0, 0), ALLOW),  # send
        (44, (5, 9, 1, 0, 0x1000, 16), EPERM),  # sendto with an address
        (44, (5, 9, 1, 0, 0x7F0000000000, 16), EPERM),  # the same, all in the upper half
        (62, (OWN_PID, 9), ALLOW),  # kill itself
        (62, (1, 0), EPERM),
        (62, (0xFFFFFFFF, 9), EPERM),  # kill(-1)
        (62, (0, 9), EPERM),  # kill the group
        (234, (OWN_PID, OWN_PID, 6), ALLOW),  # abort
        (234, (1, 1, 9), EPERM),
        (302, (0, 9, 0), ALLOW),  # prlimit of itself
        (302, (1, 9, 0), EPERM),
        (9, (0, 4096, 3, 34), ALLOW),  # mmap read, write
        (9, (0, 4096, 7, 34), EPERM),  # mmap read, write, execute
        (10, (0, 4096, 5), EPERM),  # mprotect read, execute
        (329, (0, 4096, 4), EPERM),  # pkey_mprotect execute
        (157, (15,), ALLOW),  # prctl(PR_SET_NAME)
        (157, (1, 0), EPERM),  # prctl(PR_SET_PDEATHSIG)
        (72, (3, 4), ALLOW),  # fcntl(F_SETFL)
        (72, (3, 8), EPERM),  # fcntl(F_SETOWN)
        (16, (1, 0x5401), ALLOW),  # ioctl(TCGETS), what isatty asks
        (16, (0, 0x5412), EPERM),  # ioctl(TIOCSTI)
        (90, (), EPERM),  # chmod
        (319, (), EPERM),  # memfd_create
        (425, (), EPERM),  # io_uring_setup
        (463, (), ENOSYS),  # newer than the file
        (0x40000000 | 59, (), ENOSYS),  # execve of x32
    ],
)
def test_filter_decides(program: bytes, number: int, arguments: tuple[int, ...], verdict: int) -> None:
    assert decide(program, number, arguments) == verdict


def test_filter_kills_a_foreign_architecture(program: bytes) -> None:
    # int 0x80 from 64-bit code: system call 11 of i386 is execve
    assert decide(program, 11, architecture=0x40000003) == KILL


@pytest.mark.parametrize(("machine", "column", "token"), [("x86_64", 0, X86_64), ("aarch64", 1, AARCH64)])
def test_filter_denies_exactly_the_table(
    machine: str, column: int, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = filter_for(machine, monkeypatch)
    denied = {numbers[column] for numbers in seccomp._DENIED.values()}  # pyright: ignore[reportPrivateUsage]
    examined = {numbers[column] for numbers in seccomp._EXAMINED.values()}  # pyright: ignore[reportPrivateUsage]
    for number in set(range(463)) - examined:
        expected = EPERM if number in denied else ALLOW
        assert decide(program, number, architecture=token) == expected, number


def test_filter_denies_truncate_unless_landlock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decide(filter_for("x86_64", monkeypatch, truncate_is_covered=True), 76) == ALLOW
    assert decide(filter_for("x86_64", monkeypatch, truncate_is_covered=False), 76) == EPERM


def test_aarch64_has_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    program = filter_for("aarch64", monkeypatch)
    assert decide(program, 221, architecture=AARCH64) == EPERM  # execve
    assert decide(program, 59, architecture=AARCH64) == ALLOW  # pipe2 there, execve on x86_64
    assert decide(program, 220, (17,), architecture=AARCH64) == EPERM  # clone of a process
    assert decide(program, 129, (1, 0), architecture=AARCH64) == EPERM  # kill


def test_unknown_machine_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not seccomp.is_supported()
