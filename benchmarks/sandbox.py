"""How long a call takes and whether anything stays behind: `python benchmarks/sandbox.py [--executions 5000]`.

Prints, per back end, the median of a fresh session with its first call, of a later call, and of a close; then runs many
executions of which every tenth times out, and counts processes, descriptors and memory before and after.
"""

import argparse
import gc
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from edge_rl.errors import EdgeRLError
from edge_rl.sandbox import AnyInterpreter, make_interpreter

_CALL = "x = 6 * 7\nprint(x)"


def measure_latency(interpreter: AnyInterpreter, repeats: int) -> dict[str, float]:
    """Return medians in milliseconds."""
    fresh: list[float] = []
    later: list[float] = []
    close: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        session = interpreter.open()
        session.run(_CALL)
        fresh.append(time.perf_counter() - begun)
        for _ in range(5):
            begun = time.perf_counter()
            session.run(_CALL)
            later.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        session.close()
        close.append(time.perf_counter() - begun)
    named = {"fresh session + first call": fresh, "later call": later, "close": close}
    return {name: 1_000 * statistics.median(times) for name, times in named.items()}


def census() -> dict[str, float]:
    """Return what could have stayed behind, of this process and those below it."""
    gc.collect()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        "processes": len(processes),
        "zombies": sum(process.status() == psutil.STATUS_ZOMBIE for process in processes),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a listing, not paths
        "descriptors of children": sum(process.num_fds() for process in processes[1:]),
        "memory MiB": processes[0].memory_info().rss / 2**20,
        "memory of children MiB": sum(process.memory_info().rss for process in processes[1:]) / 2**20,
    }


def run_many(interpreter: AnyInterpreter, executions: int, threads: int) -> dict[str, tuple[float, float]]:
    """Run `executions` sessions, every tenth into its time limit; return (before, after) of the census."""

    def one(number: int) -> None:
        code = "while True:\n    pass" if number % 10 == 0 else _CALL
        session = interpreter.open()
        session.run(code)
        session.close()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(1, 101)))  # warm up, so that growth means growth
        before = census()
        list(pool.map(one, range(executions)))
        after = census()
    return {name: (before[name], after[name]) for name in before}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["landlock", "bubblewrap", "monty"])
    parser.add_argument("--preload", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--executions", type=int, default=0, help="0 = latency only")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=0.2, help="seconds")
    arguments = parser.parse_args(argv)
    for backend in arguments.backends:
        try:
            interpreter = make_interpreter(backend, timeout_s=arguments.timeout, preload=arguments.preload)
        except EdgeRLError as error:
            print(f"{backend}: {error}")
            continue
        with interpreter:
            for name, milliseconds in measure_latency(interpreter, arguments.repeats).items():
                print(f"{backend:<12} {name:<28} {milliseconds:8.2f} ms")
            if arguments.executions:
                begun = time.perf_counter()
                counts = run_many(interpreter, arguments.executions, arguments.threads)
                print(f"{backend:<12} {arguments.executions} executions in {time.perf_counter() - begun:.0f} s")
                for name, (before, after) in counts.items():
                    print(f"{backend:<12} {name:<28} {before:8.1f} -> {after:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
