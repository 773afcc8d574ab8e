"""Every command that README prints can be typed: the door exists, takes these options, and the make target is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rl.cli import DOORS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def _commands() -> list[str]:
    """The lines of README's sh blocks, comments and continuations resolved."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


COMMANDS = _commands()


def _door_calls() -> list[tuple[str, list[str]]]:
    """(door, options) of every call in README, those behind make's ARGS included."""
    calls: list[tuple[str, list[str]]] = []
    for command in COMMANDS:
        words = shlex.split(command, comments=True)
        if words[:1] == ["make"]:
            given = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
            calls += [(words[1], shlex.split(given[0]))] if given else []
        elif words[0].endswith("edge-rl"):
            calls.append((words[1], words[2:]))
        elif words[0].endswith("python") and words[1:2] == ["-m"] and words[2].startswith("edge_rl."):
            calls.append((words[2].removeprefix("edge_rl."), words[3:]))
    return calls


CALLS = _door_calls()


def test_commands_were_found() -> None:
    assert any(command.startswith("make train") for command in COMMANDS)
    assert {"train", "eval", "export", "verify", "interpret"} <= {door for door, _ in CALLS}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_begins_with_something_that_exists(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE)
        assert words[1] in targets, f"README types `make {words[1]}`"
        assert all(word.startswith(("ARGS=", "PYTHON=")) for word in words[2:])
    else:
        assert words[0] in (".venv/bin/edge-rl", ".venv/bin/python", ".venv/bin/pip"), command


@pytest.mark.slow
@pytest.mark.parametrize("door", sorted({door for door, _ in CALLS}))
def test_door_takes_the_options(door: str) -> None:
    assert door in DOORS
    result = subprocess.run(
        [sys.executable, "-m", "edge_rl", door, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    for words in (options for name, options in CALLS if name == door):
        for word in words:
            if word.startswith("--") and word != "--help":
                assert re.search(rf"{re.escape(word.split('=')[0])}\b", result.stdout), f"{door} does not know {word}"


def test_python_of_the_readme_uses_public_names() -> None:
    import edge_rl

    for block in re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL):
        compile(block, "README.md", "exec")
        for name in re.findall(r"\bedge_rl\.([a-z_A-Z]+)\b", block):
            assert name in edge_rl.__all__ or (ROOT / "edge_rl" / f"{name}.py").exists(), f"edge_rl.{name}"
