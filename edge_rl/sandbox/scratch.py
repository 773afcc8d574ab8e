"""Scratch directories: how much is in them, and how they go away. Trusts nothing that model code made there.

Directories may be thousands deep, so nothing here recurses or builds long paths; symbolic links are never followed.
"""

import itertools
import os
from pathlib import Path


def is_over(scratch: Path, *, max_bytes: int, max_entries: int) -> bool:
    """Return whether the files below hold more than `max_bytes`, or are more than `max_entries`.

    A tree too deep to look into counts as over. Sizes are those on disk, so a sparse file counts what it uses.
    """
    total, entries, pending = 0, 0, [str(scratch)]
    while pending:
        try:
            with os.scandir(pending.pop()) as listing:
                for entry in listing:
                    entries += 1
                    total += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    if total > max_bytes or entries > max_entries:
                        return True
        except FileNotFoundError:
            continue  # the code removed it in between
        except OSError:
            return True
    return False


def remove(scratch: Path) -> None:
    """Delete the directory and all it holds; its processes must be dead.

    Whatever lies in a subdirectory is first moved up, so that paths stay short however deep the tree was.
    """
    names = (f".edge_rl-{number}" for number in itertools.count())
    while entries := list(os.scandir(scratch)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            with os.scandir(entry.path) as listing:
                inner = [child.path for child in listing]
            for path in inner:
                os.rename(path, scratch / next(name for name in names if not os.path.lexists(scratch / name)))
            os.rmdir(entry.path)
    os.rmdir(scratch)
