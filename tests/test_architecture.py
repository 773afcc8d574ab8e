"""The rules of the layout, as tests. The import contract itself stands in pyproject.toml."""

import ast
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edge_rl.cli import DOORS
from tests.mutate import Mutation, fault_of, load_mutations

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "edge_rl").rglob("*.py"))
BANNED_NAMES = {"utils", "util", "helpers", "common", "misc"}
EVERYTHING = ("Exception", "BaseException")
HEAVY = ("torch", "transformers", "peft", "trl", "datasets", "accelerate", "matplotlib", "gradio", "vllm", "numpy")


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _copy_package(folder: Path) -> Path:
    shutil.copytree(ROOT / "edge_rl", folder / "edge_rl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder / "edge_rl"


def test_import_contract_holds(tmp_path: Path) -> None:
    _copy_package(tmp_path)
    result = _lint_imports(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("data/intruder.py", "import edge_rl.scoring"),
        ("types.py", "import edge_rl.data"),
        ("unlisted.py", "import edge_rl.errors"),
        ("scoring/intruder.py", "import torch"),
        ("rollout/intruder.py", "import vllm"),
        ("learning/intruder.py", "import edge_rl.train"),
    ],
    ids=["stage-stage", "word-stage", "unlisted-file", "heavy-in-light", "vllm-elsewhere", "stage-door"],
)
def test_import_contract_catches_a_break(tmp_path: Path, path: str, line: str) -> None:
    package = _copy_package(tmp_path)
    if not (package / "train.py").exists():
        (package / "train.py").touch()
    with (package / path).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = _lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module",
    [
        "edge_rl",
        "edge_rl.errors",
        "edge_rl.types",
        "edge_rl.config",
        "edge_rl.catalog",
        "edge_rl.cli",
        "edge_rl.data",
        "edge_rl.scoring",
    ],
)
def test_light_modules_load_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file_has_a_docstring_and_a_telling_name(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} does not say what it knows"
    assert path.stem not in BANNED_NAMES
    assert path.parent.name not in BANNED_NAMES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file_swallows_no_error(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in EVERYTHING):
            inside = [inner for line in node.body for inner in ast.walk(line)]
            is_told = any(isinstance(inner, ast.Name) and inner.id == node.name for inner in inside)
            is_raised = any(isinstance(inner, ast.Raise) for inner in inside)
            assert is_told or is_raised, f"{path}:{node.lineno} swallows whatever comes"


def test_public_names_exist() -> None:
    import edge_rl

    for name in getattr(edge_rl, "__all__", ()):
        assert hasattr(edge_rl, name), f"edge_rl.__all__ lists {name}, which does not exist"


@pytest.mark.parametrize("door", DOORS)
def test_door_answers_help(door: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", f"edge_rl.{door}", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()


def test_makefile_words_are_those_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    for word in re.findall(r"`make ([a-z-]+)", readme):
        assert word in targets, f"README names `make {word}`, which the Makefile does not have"
    for target in targets - {"help"}:
        assert f"make {target}" in readme, f"README does not name `make {target}`"


def test_readme_names_every_part_of_the_package() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## Where things are")[1]
    for path in (ROOT / "edge_rl").iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert path.name in tree, f"README's tree lacks {path.name}"
        elif path.is_dir() and path.name != "__pycache__":
            assert f"{path.name}/" in tree, f"README's tree lacks {path.name}/"


def test_tests_cannot_reach_the_network_or_the_home_of_their_user() -> None:
    with socket.socket() as connection, pytest.raises(pytest.fail.Exception, match="tried to connect"):
        connection.connect(("192.0.2.1", 9))  # an address reserved for documentation; refused before anything is sent
    assert "edge-rl-tests-" in str(Path.home())


@pytest.mark.parametrize("mutation", load_mutations(), ids=str)
def test_mutation_can_be_applied(mutation: Mutation) -> None:
    assert fault_of(mutation) is None


def test_ci_runs_only_what_a_person_can_type() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("make ")] == ["make check", "make test"]
