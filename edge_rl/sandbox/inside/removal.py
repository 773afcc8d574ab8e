"""How scratch directories go away, on either side of the wall. Trusts nothing that model code made there."""

import itertools
import os
from pathlib import Path


def remove(scratch: Path) -> None:
    """Delete the directory and all it holds; its processes must be dead.

    Whatever lies in a subdirectory is first moved up, so that paths stay short however deep the tree was.
    """
    names = (f".edge_rl-{number}" for number in itertools.count())
    while entries := list(os.scandir(scratch)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                Path(entry.path).unlink()
                continue
            with os.scandir(entry.path) as listing:
                inner = [Path(child.path) for child in listing]
            for path in inner:
                path.rename(scratch / next(name for name in names if not os.path.lexists(scratch / name)))
            Path(entry.path).rmdir()
    scratch.rmdir()
