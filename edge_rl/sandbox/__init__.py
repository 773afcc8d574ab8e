"""Runs untrusted Python: the interpreter that rollouts and code verifiers use. Knows no model, prompt or reward.

A session is one process; its variables and its scratch directory persist between calls, and nothing else does. Code
runs as a script: what it prints counts, the value of a last expression is not shown.

Promised, by the back ends `landlock`, `bubblewrap` and `monty`, for code that wants to do harm:
- Files: nothing of the host is read or written but the standard library (read) and the session's scratch directory.
- Secrets: no environment, arguments, memory or open files of the host, of another session or of an earlier one.
- Network: none, the host's own services included.
- Processes: none is started; none is signalled, traced or slowed down; none outlives `close`.
- Resources: wall time, CPU time, memory, output, file size and scratch space are bounded; the host survives each bound.
- Results: what code prints cannot pass for a result, and one call cannot answer for a later one.

Not promised:
- Safety from holes in the kernel, in CPython or in monty, and from what the processor leaks (side channels).
- That names, sizes and times of host files stay hidden (`landlock`; `bubblewrap` hides most of them), nor the host
  name, the load and the number of processors.
- That a call which reports OK did its work: code that runs in a process can end it early or imitate its own report.
  Hidden tests must be compared outside of the process that ran the candidate.
- Anything with `unsafe`: it bounds resources and is no sandbox.

`landlock` needs Linux 5.13+; it works as root and as an ordinary user, also under Docker's default profile.
`bubblewrap` adds mount namespaces around the same. `monty` runs a subset of Python anywhere. `auto` takes the first
of `landlock` and `monty` that proves itself, and fails where none does. What is active is tried at the start in a real
session, not looked up: `make_interpreter(...).describe()`.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from edge_rl.errors import MissingExtraError, SandboxError
from edge_rl.sandbox.forkserver import ForkServerInterpreter
from edge_rl.sandbox.limits import Limits
from edge_rl.sandbox.monty import MontyInterpreter
from edge_rl.sandbox.session import ProcessSession

AnyInterpreter = ForkServerInterpreter | MontyInterpreter

BACKENDS: dict[str, Callable[[Limits, Sequence[str]], AnyInterpreter]] = {
    "landlock": lambda limits, preload: ForkServerInterpreter("landlock", limits, preload),
    "bubblewrap": lambda limits, preload: ForkServerInterpreter("bubblewrap", limits, preload),
    "monty": MontyInterpreter,
    "unsafe": lambda limits, preload: ForkServerInterpreter("unsafe", limits, preload),
}
"""To add one: a class with open, describe and close, a line here, and its row in tests/contract/test_sandbox.py."""

UNSAFE_WARNING = "UNSAFE INTERPRETER: model code runs with all rights of this user: files, network, processes"


def make_interpreter(
    backend: str = "auto", *, timeout_s: float = 5.0, memory_mb: int = 1024, preload: Sequence[str] = ()
) -> AnyInterpreter:
    """Return a running interpreter; close it, or let it go with the process.

    `preload` names packages that sessions may import (`sympy`, `numpy`); they are imported once, before any session.
    Raises: SandboxError where the back end does not exist, does not start or does not keep its promises here.
    """
    limits = Limits(timeout_s=timeout_s, memory_bytes=memory_mb << 20)
    if backend == "auto":
        return _first_that_works(limits, preload)
    if backend not in BACKENDS:
        raise SandboxError(f"sandbox back end {backend!r} does not exist; known: auto, {', '.join(BACKENDS)}")
    if backend == "unsafe":
        warnings.warn(UNSAFE_WARNING, stacklevel=2)
    return BACKENDS[backend](limits, preload)


def _first_that_works(limits: Limits, preload: Sequence[str]) -> AnyInterpreter:
    reasons: list[str] = []
    for name in ("landlock", "monty"):
        try:
            return BACKENDS[name](limits, preload)
        except (SandboxError, MissingExtraError) as error:
            reasons.append(str(error))
    raise SandboxError(
        "no sandbox works on this machine, so model code is not run. "
        f"{'; '.join(reasons)}. Install one: pip install 'edge_rl[sandbox]'"
    )


def describe(interpreter: AnyInterpreter) -> dict[str, Any]:
    """Return what is active in an interpreter, for the manifest of a run."""
    return interpreter.describe()


__all__ = [
    "BACKENDS",
    "UNSAFE_WARNING",
    "AnyInterpreter",
    "ForkServerInterpreter",
    "Limits",
    "MontyInterpreter",
    "ProcessSession",
    "describe",
    "make_interpreter",
]
