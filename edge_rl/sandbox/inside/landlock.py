"""Landlock: which paths this process and its children may touch. Knows the kernel interface and no policy.

Source: https://docs.kernel.org/userspace-api/landlock.html. The three system calls have the same numbers on every
architecture. A ruleset handles every right that the running kernel knows, so what is not granted is denied.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_O_PATH = 0o10000000

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_NET = 0b11  # bind and connect over TCP
_ALL_SCOPES = 0b11  # abstract UNIX sockets and signals

READ = _READ_FILE | _READ_DIR
WRITE = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER | _TRUNCATE
_FOR_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def abi() -> int:
    """Return the version of Landlock that the kernel offers; 0 where it has none or it is switched off."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    except OSError:
        return 0


def _handled_rights(version: int) -> int:
    newest = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)  # number of file rights known to each version
    return (1 << newest) - 1


def restrict(version: int, rules: Iterable[tuple[str, int]]) -> None:
    """Deny this thread every path outside `rules` (path, rights beneath it); paths that do not exist are left out.

    TCP is denied from version 4, signals and abstract sockets to outsiders from version 6.
    Raises: OSError where the kernel refuses.
    """
    handled = _handled_rights(version)
    attributes = struct.pack("=QQQ", handled, _ALL_NET if version >= 4 else 0, _ALL_SCOPES if version >= 6 else 0)[
        : 24 if version >= 6 else 16 if version >= 4 else 8
    ]
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        for path, rights in rules:
            _add_rule(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not Path(path).is_dir():
            rights &= _FOR_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
