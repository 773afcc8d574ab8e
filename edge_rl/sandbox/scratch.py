"""Scratch directories: where they lie and how much is in them. Trusts nothing that model code made there.

Directories may be thousands deep, so nothing here recurses; symbolic links are never followed.
"""

import os
import tempfile
from pathlib import Path

_MAX_DEPTH = 64
_MEMORY_DISK = Path("/dev/shm")
_MIN_MEMORY_DISK_BYTES = 1 << 30  # Docker's default of 64 MiB is left to those who rely on it


def make_root() -> Path:
    """Return a new directory for scratch directories: in memory if there is room, since a disk takes milliseconds."""
    parent = None
    if os.access(_MEMORY_DISK, os.W_OK):
        space = os.statvfs(_MEMORY_DISK)
        if space.f_bavail * space.f_frsize >= _MIN_MEMORY_DISK_BYTES:
            parent = _MEMORY_DISK
    return Path(tempfile.mkdtemp(prefix="edge_rl-sandbox-", dir=parent))


def is_over(scratch: Path, *, max_bytes: int, max_entries: int) -> bool:
    """Return whether the files below hold more than `max_bytes`, or are more than `max_entries`.

    A tree deeper than 64 counts as over: looking into it costs the square of its depth. Sizes are those on disk, so a
    sparse file counts what it uses.
    """
    total, entries, pending = 0, 0, [(str(scratch), 0)]
    while pending:
        directory, depth = pending.pop()
        if depth > _MAX_DEPTH:
            return True
        try:
            with os.scandir(directory) as listing:
                for entry in listing:
                    entries += 1
                    total += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    if total > max_bytes or entries > max_entries:
                        return True
        except FileNotFoundError:
            continue  # the code removed it in between
    return False
