"""Memory of the process. Knows the C library and nothing else of the project."""

import ctypes
import sys
from functools import cache
from typing import Any


def release_free_memory() -> None:
    """Give pages that the process no longer uses back to the operating system; does nothing without glibc.

    A rollout frees a key-value cache and an update its activations. glibc keeps such blocks for later, and as their sizes
    change from step to step, the pile grows.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
