"""seccomp: which system calls this process may make. Knows system-call numbers and the filter machine.

The filter refuses, with EPERM: new processes and programs, sockets, signals to others, a look into or a change of
other processes, new machine code, kernel interfaces with a history of holes, and changes of file metadata, which
Landlock does not cover. It reads numbers and register arguments only, so it cannot be raced. System calls newer than
this file are answered as unknown (ENOSYS). Source: https://docs.kernel.org/userspace-api/seccomp_filter.html.
"""

import ctypes
import errno
import os
import platform
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_RET_ALLOW, _RET_ERRNO, _RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # byte offsets in struct seccomp_data
_NEWEST_KNOWN = 462  # mseal, Linux 6.10; x32 numbers (bit 30) lie above it too
_OWN_PID = 0x5EC0ED6E  # stands for the pid of the session until the filter is installed

_CLONE_THREAD = 0x00010000
_PROT_EXEC = 4
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_SIGNAL_OWNER_FCNTLS = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
_SIGNAL_OWNER_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX

# name: (x86_64, aarch64); -1 where the architecture has no such call.
_DENIED = {
    # new processes and programs
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    # network
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # signals and handles to other processes
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    # other processes: memory, priority, group
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "get_robust_list": (274, 100), "setpriority": (141, 140),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122), "ioprio_set": (251, 30), "setpgid": (109, 154), "setsid": (112, 157),
    # kernel interfaces that model code never needs
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "io_submit": (209, 2), "userfaultfd": (323, 282), "bpf": (321, 280),
    "perf_event_open": (298, 241), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "seccomp": (317, 277), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "inotify_init": (253, -1), "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77), "remap_file_pages": (216, 234),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
    "map_shadow_stack": (453, 453), "lsm_set_self_attr": (460, 460), "uretprobe": (335, -1), "uprobe": (336, -1),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "nfsservctl": (180, 42), "acct": (163, 89),
    # the machine
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "create_module": (174, -1), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1), "ioperm": (173, -1),
    "modify_ldt": (154, -1), "personality": (135, 92), "lookup_dcookie": (212, 18), "vhangup": (153, 58),
    "sync": (162, 81), "syncfs": (306, 267), "uselib": (134, -1), "sysfs": (139, -1), "_sysctl": (156, -1),
    # identity
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setgroups": (116, 159), "setresuid": (117, 147), "setresgid": (119, 149), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91),
    # memory that no limit of ours counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # file metadata: Landlock lets these through
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1),
    "futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "mknod": (133, -1), "mknodat": (259, 33),
}  # fmt: skip
# Looked at more closely: allowed for the session itself, denied otherwise.
_EXAMINED = {
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "mmap": (9, 222), "mprotect": (10, 226), "pkey_mprotect": (329, 288), "socketpair": (53, 199),
    "sendto": (44, 206), "prctl": (157, 167), "fcntl": (72, 25), "ioctl": (16, 29), "truncate": (76, 45),
}  # fmt: skip

_BLOCK = 12  # numbers that are compared one by one

_Instruction = tuple[int, int, int, int]


def _statement(code: int, value: int) -> _Instruction:
    return (code, 0, 0, value)


def _deny(code: int = errno.EPERM) -> _Instruction:
    return _statement(_RETURN, _RET_ERRNO | code)


def _allow() -> _Instruction:
    return _statement(_RETURN, _RET_ALLOW)


def _argument(index: int, *, high: bool = False) -> _Instruction:
    return _statement(_LOAD, _ARGUMENTS + 8 * index + (4 if high else 0))


def _when(code: int, value: int, *, then: list[_Instruction]) -> list[_Instruction]:
    return [(code, 0, len(then), value), *then]


def _only(index: int, *values: int) -> list[_Instruction]:
    body = [_argument(index)]
    for value in values:
        body += _when(_EQUAL, value, then=[_allow()])
    return [*body, _deny()]


def _none_of(index: int, values: tuple[int, ...]) -> list[_Instruction]:
    body = [_argument(index)]
    for value in values:
        body += _when(_EQUAL, value, then=[_deny()])
    return [*body, _allow()]


def _examined(*, truncate_is_covered: bool) -> dict[str, list[_Instruction]]:
    no_new_machine_code = [_argument(2), *_when(_ANY_BIT, _PROT_EXEC, then=[_deny()]), _allow()]
    return {
        "clone": [_argument(0), *_when(_ANY_BIT, _CLONE_THREAD, then=[_allow()]), _deny()],
        # Its flags lie in memory, which a filter cannot read; libc falls back to clone.
        "clone3": [_deny(errno.ENOSYS)],
        "kill": _only(0, _OWN_PID),
        "tgkill": _only(0, _OWN_PID),
        "prlimit64": _only(0, 0, _OWN_PID),
        "mmap": no_new_machine_code,
        "mprotect": no_new_machine_code,
        "pkey_mprotect": no_new_machine_code,
        # A pair of connected streams (asyncio needs one) reaches nobody; a datagram socket could address others.
        "socketpair": [
            _argument(0),
            *_when(_EQUAL, _AF_UNIX, then=[
                _argument(1), _statement(_AND, _SOCK_TYPE_MASK), *_when(_EQUAL, _SOCK_STREAM, then=[_allow()]),
            ]),
            _deny(),
        ],
        "sendto": [
            _argument(4),
            *_when(_EQUAL, 0, then=[_argument(4, high=True), *_when(_EQUAL, 0, then=[_allow()])]),
            _deny(),
        ],
        "prctl": _only(0, _PR_SET_NAME, _PR_GET_NAME),
        "fcntl": _none_of(1, _SIGNAL_OWNER_FCNTLS),
        "ioctl": _none_of(1, _SIGNAL_OWNER_IOCTLS),
        "truncate": [_allow() if truncate_is_covered else _deny()],
    }  # fmt: skip


def _search(denied: list[int]) -> list[_Instruction]:
    # In blocks that are skipped whole: the kernel tries every number when the filter is installed.
    program: list[_Instruction] = []
    for start in range(0, len(denied), _BLOCK):
        block = denied[start : start + _BLOCK]
        body = [(_EQUAL, len(block) - index, 0, number) for index, number in enumerate(block)]
        following = denied[start + _BLOCK : start + _BLOCK + 1]
        program += [(_AT_LEAST, len(body) + 2, 0, number) for number in following]
        program += [*body, _allow(), _deny()]
    return program


def is_supported() -> bool:
    """Return whether the numbers of this machine's architecture are known here."""
    return platform.machine() in _ARCHITECTURES and struct.calcsize("P") == 8


def build_filter(*, truncate_is_covered: bool) -> bytes:
    """Return the filter as an array of struct sock_filter, the session's pid still to be filled in.

    `truncate_is_covered` says whether Landlock denies truncate(2) on paths outside (from its version 3).
    """
    token, column = _ARCHITECTURES[platform.machine()]
    program: list[_Instruction] = [
        _statement(_LOAD, _ARCHITECTURE),
        *[(_EQUAL, 1, 0, token), _statement(_RETURN, _RET_KILL_PROCESS)],
        _statement(_LOAD, _NUMBER),
        *_when(_AT_LEAST, _NEWEST_KNOWN + 1, then=[_deny(errno.ENOSYS)]),
    ]
    for name, body in _examined(truncate_is_covered=truncate_is_covered).items():
        program += _when(_EQUAL, _EXAMINED[name][column], then=body)
    program += _search(sorted(numbers[column] for numbers in _DENIED.values() if numbers[column] >= 0))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def install(template: bytes) -> None:
    """Put the filter on this thread for good; needs no_new_privs.

    Raises: OSError where the kernel refuses.
    """
    program = template.replace(struct.pack("=I", _OWN_PID), struct.pack("=I", os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), header, zero, zero):
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
