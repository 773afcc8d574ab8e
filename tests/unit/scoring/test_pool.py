import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from edge_rl.errors import VerifierError
from edge_rl.scoring.expressions.nodes import encode
from edge_rl.scoring.expressions.parser import parse
from edge_rl.scoring.pool import Pool, TaskTimeoutError

USER_FILE = str(Path(__file__).parents[2] / "data" / "user_verifier.py")


def user_job(function: str) -> dict[str, object]:
    return {"file": USER_FILE, "function": function, "completion": "x 7", "answer": "7", "options": {}}


def test_late_and_broken_tasks_cost_their_process_only() -> None:
    pool = Pool(2)
    try:
        assert pool.call("user_verifier", user_job("verify"), limit_s=5.0) is True
        children = {child.pid for child in psutil.Process(pool.pid).children()}
        start = time.monotonic()
        with pytest.raises(TaskTimeoutError):
            pool.call("user_verifier", user_job("hang"), limit_s=0.3)
        assert time.monotonic() - start < 3.0
        with pytest.raises(VerifierError, match="RuntimeError: broken on purpose"):
            pool.call("user_verifier", user_job("fail"))
        assert pool.call("user_verifier", user_job("verify"), limit_s=5.0) is True
        after = {child.pid for child in psutil.Process(pool.pid).children()}
        assert len(after) == 2
        assert len(children - after) == 1
        assert not [child for child in psutil.Process(pool.pid).children() if child.status() == psutil.STATUS_ZOMBIE]
    finally:
        pool.close()
    assert not psutil.pid_exists(pool.pid) or psutil.Process(pool.pid).status() == psutil.STATUS_ZOMBIE


def test_a_pattern_that_explodes_is_killed() -> None:
    pool = Pool(1)
    try:
        with pytest.raises(TaskTimeoutError):
            pool.call("pattern", {"pattern": "(a+)+b", "flags": 0, "text": "a" * 40, "mode": "full"}, limit_s=0.3)
    finally:
        pool.close()


def test_threads_share_a_pool() -> None:
    pool = Pool(2)
    pair = [encode(parse(r"\frac{\sqrt{2}}{2}")), encode(parse(r"\frac{1}{\sqrt{2}}"))]

    def prove(_: int) -> dict[str, bool | None]:
        return pool.call("prove", pair, limit_s=5.0)

    try:
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(prove, range(40)))
        assert all(result["sympy"] is True for result in results)
    finally:
        pool.close()


@pytest.mark.slow
def test_five_thousand_rows_with_a_tenth_of_timeouts_leave_nothing() -> None:
    pool = Pool(2)
    try:
        pool.call("user_verifier", user_job("verify"), limit_s=5.0)
        supervisor = psutil.Process(pool.pid)
        before = (supervisor.memory_info().rss, supervisor.num_fds(), psutil.Process(os.getpid()).memory_info().rss)

        def one(row: int) -> bool:
            try:
                pool.call("user_verifier", user_job("hang" if row % 10 == 0 else "verify"), limit_s=0.02)
            except TaskTimeoutError:
                return True
            return False

        with ThreadPoolExecutor(4) as threads:
            late = sum(threads.map(one, range(5_000)))
        assert late >= 500
        assert supervisor.num_fds() <= before[1] + 2
        assert supervisor.memory_info().rss - before[0] < 8 << 20
        assert psutil.Process(os.getpid()).memory_info().rss - before[2] < 64 << 20
        # the last row may have cost a child its life a moment ago: its successor is on the way, and no third one comes
        deadline = time.monotonic() + 5.0
        while len(supervisor.children()) != 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(supervisor.children()) == 2
    finally:
        pool.close()
