"""What a user wrote and a completion may make run for ever: patterns and functions. Runs in a worker child only."""

import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any


def search_pattern(payload: dict[str, Any]) -> bool:
    """Return whether the pattern matches the text: all of it with mode "full", anywhere with "search"."""
    pattern = re.compile(payload["pattern"], payload["flags"])
    match = pattern.fullmatch if payload["mode"] == "full" else pattern.search
    return match(payload["text"]) is not None


def call_user_verifier(payload: dict[str, Any]) -> bool | float | None:
    """Return what the user's function says of a completion: True, False, a number, or None for "could not judge".

    Raises: whatever the function raises; TypeError if it returns something else.
    """
    module = load_file(payload["file"], Path(payload["file"]).stat().st_mtime_ns)
    function = getattr(module, payload["function"])
    result = function(payload["completion"], payload["answer"], **payload["options"])
    if result is None or isinstance(result, bool | int | float):
        return result
    raise TypeError(f"{payload['function']} returned {type(result).__name__}; expected True, False or None")


@lru_cache(maxsize=32)
def load_file(path: str, modified_ns: int) -> ModuleType:
    """Return the module in a Python file, loaded afresh when the file has changed."""
    del modified_ns
    spec = importlib.util.spec_from_file_location(f"edge_rl_user_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
