"""`edge-rl <door> ...`: finds the door by its name and runs it. Knows names only; a door is loaded when it is called.

Every door has `main(argv) -> int` and returns 0 on success and 1 where a check fails; a user's mistake gives one line
on stderr and 2, and Ctrl-C gives 130.
"""

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence

from edge_rl.errors import EdgeRLError, MissingExtraError

Main = Callable[[Sequence[str] | None], int]

DOORS: dict[str, str] = {
    "train": "train an adapter, prove it on held-out questions, export it",
    "probe": "measure what a model can do on its task, and say which recipe that speaks for",
    "eval": "measure a checkpoint on held-out questions",
    "export": "merge an adapter, convert it to GGUF and check that in llama.cpp",
    "doctor": "read a run and say what happens, why, and the one thing to do",
    "verify": "judge completions: labelled cases, one at a time, or mutations of a gold answer",
    "interpret": "try the sandbox: what is active here, and does it hold?",
}
"""Name -> one line. To add a door: write edge_rl/<name>.py with `main(argv) -> int`, and add the line here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the door named by the first argument; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"edge-rl {importlib.metadata.version('edge-rl')}")
        return 0
    door, *rest = arguments
    if door not in DOORS:
        near = difflib.get_close_matches(door, DOORS, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(DOORS)}"
        print(f"edge-rl: door {door!r} does not exist; {advice}", file=sys.stderr)
        return 2
    return run_door(lambda given: load_door(door)(given), rest)


def run_door(door: Main, argv: Sequence[str] | None) -> int:
    """Run a door; turn a user's mistake into one line on stderr and exit status 2."""
    try:
        return door(argv)
    except EdgeRLError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def load_door(name: str) -> Main:
    """Return the `main` of a door.

    Raises: MissingExtraError where a package that the door needs is not installed.
    """
    try:
        return importlib.import_module(f"edge_rl.{name}").main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "edge_rl":
            raise
        raise MissingExtraError(
            f"{error.name} is not installed, and `{name}` needs it; run: pip install 'edge_rl[train,export]'"
        ) from error


def usage() -> str:
    """Return the help text: every door with its line."""
    lines = [f"  {name:<10} {line}" for name, line in DOORS.items()]
    return "\n".join(["usage: edge-rl <door> [options]   (help of one: edge-rl <door> --help)", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
