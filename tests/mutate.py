"""Breaks every formula on purpose, one at a time, in a copy of the tree, and demands that a test fails.

    python tests/mutate.py                    all mutations
    python tests/mutate.py learning/losses    those of source files whose path contains this

Each file in tests/mutations/ lists (source file, old text that occurs once, new text, pytest target). A mutation that
leaves its target green is a hole in the tests: it is printed, and the exit status is 1.
"""

import argparse
import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("edge_rl", "tests", "data_seeds", "export", "benchmarks", "pyproject.toml", "Makefile", "README.md", ".ci")
TIMEOUT_S = 600
FAILED_TESTS = 1
"""pytest's exit status when tests ran and some failed; others mean that nothing was tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change that must turn a test red."""

    path: str
    old: str
    new: str
    target: str

    def __str__(self) -> str:
        return f"{self.path}: {_one_line(self.old)!r} -> {_one_line(self.new)!r}  [{self.target}]"


def load_mutations() -> list[Mutation]:
    """Return all mutations of tests/mutations/."""
    found: list[Mutation] = []
    for path in sorted((ROOT / "tests" / "mutations").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"mutations_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        listed = cast("list[tuple[str, str, str, str]]", getattr(module, "MUTATIONS", []))
        found += [Mutation(path=source, old=old, new=new, target=target) for source, old, new, target in listed]
    return found


def fault_of(mutation: Mutation, root: Path = ROOT) -> str | None:
    """Return why a mutation cannot be applied; None if it can."""
    source = root / mutation.path
    if not source.is_file():
        return "no such source file"
    count = source.read_text(encoding="utf-8").count(mutation.old)
    if count != 1:
        return f"the old text occurs {count} times, not once"
    if mutation.old == mutation.new:
        return "old and new text are equal"
    if not (root / mutation.target.split("::")[0]).exists():
        return f"no such test {mutation.target}"
    return None


def copy_tree(folder: Path) -> None:
    """Copy what the tests need; no byte code, because a mutant can have its original's size and second."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / name)


def run_pytest(folder: Path, targets: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run the targets in a copy; None if they did not end in time."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    environment.setdefault("EDGE_RL_CACHE", str(ROOT / ".pytest_cache" / "d" / "edge-rl"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--durations=0", *targets]
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def judge(mutation: Mutation, folder: Path) -> str:
    """Return "killed", "survived" or what went wrong, after trying the mutation in this copy."""
    fault = fault_of(mutation, folder)
    if fault is not None:
        return f"invalid: {fault}"
    source = folder / mutation.path
    original = source.read_text(encoding="utf-8")
    source.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        result = run_pytest(folder, [mutation.target])
    finally:
        source.write_text(original, encoding="utf-8")
    if result is None or result.returncode == FAILED_TESTS:  # a mutant that never ends is noticed, too
        return "killed"
    if result.returncode == 0:
        return "survived"
    return f"invalid: pytest ended with {result.returncode}: {_one_line((result.stdout + result.stderr)[-300:])}"


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutations; return 0 if every one is noticed."""
    parser = argparse.ArgumentParser(description="Break formulas on purpose and demand that tests fail.")
    parser.add_argument("only", nargs="?", default="", help="part of the path of the source files")
    parser.add_argument("--jobs", type=int, default=2, help="copies at work at once")
    arguments = parser.parse_args(argv)
    mutations = [mutation for mutation in load_mutations() if arguments.only in mutation.path]
    if not mutations:
        print(f"no mutation of a path with {arguments.only!r}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="edge-rl-mutants-") as scratch:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for index in range(arguments.jobs):
            folder = Path(scratch) / str(index)
            folder.mkdir()
            copy_tree(folder)
            folders.put(folder)
        if not _is_green_untouched(folders, mutations):
            return 2
        return _try_all(folders, mutations, arguments.jobs)


def _is_green_untouched(folders: "queue.SimpleQueue[Path]", mutations: Sequence[Mutation]) -> bool:
    targets = sorted({mutation.target for mutation in mutations if fault_of(mutation) is None})
    folder = folders.get()
    result = run_pytest(folder, targets) if targets else None
    folders.put(folder)
    if targets and (result is None or result.returncode != 0):
        print(result.stdout[-3000:] if result else "the targets did not end in time")
        print("the targets are not green without a mutation; repair them first", file=sys.stderr)
        return False
    return True


def _try_all(folders: "queue.SimpleQueue[Path]", mutations: Sequence[Mutation], jobs: int) -> int:
    def attempt(mutation: Mutation) -> str:
        folder = folders.get()
        began = time.monotonic()
        try:
            verdict = judge(mutation, folder)
        finally:
            folders.put(folder)
        print(f"{verdict:<9} {time.monotonic() - began:5.1f} s  {mutation}", flush=True)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(attempt, mutations))
    left = [
        f"{verdict}  {mutation}" for verdict, mutation in zip(verdicts, mutations, strict=True) if verdict != "killed"
    ]
    print(f"\n{len(mutations)} mutations, {len(mutations) - len(left)} killed, {len(left)} left")
    for line in left:
        print(f"  {line}")
    return 1 if left else 0


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:67]}..."


if __name__ == "__main__":
    sys.exit(main())
