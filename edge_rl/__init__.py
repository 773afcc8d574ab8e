"""edge_rl: make a small language model better at your task on your one GPU, and prove it.

Sample -> Prompt -> Group of K Rollouts -> Verdict, Reward -> advantage -> one step on the adapter -> evaluation -> GGUF.

`edge_rl.verify(kind, completion, answer, **options)` judges one completion. Public names are loaded when they are first used,
so `import edge_rl` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_rl.types import Verdict

    verify: Callable[..., Verdict]

_HOMES = {"verify": "edge_rl.verify"}
"""Public name -> module that it is loaded from; `edge_rl.verify` is a module that can be called."""

__all__ = ["verify"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edge_rl' has no attribute {name!r}; public names: {', '.join(__all__)}")
    home = importlib.import_module(_HOMES[name])
    return home if _HOMES[name] == f"edge_rl.{name}" else getattr(home, name)
