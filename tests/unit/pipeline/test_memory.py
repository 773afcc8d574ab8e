"""Free pages go back to the operating system."""

import platform
from pathlib import Path

import pytest

from edge_rl.pipeline import memory
from edge_rl.pipeline.memory import release_free_memory


def _resident_mb() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) // 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_release_free_memory_gives_back_what_lies_between_blocks_in_use() -> None:
    blocks = [bytearray(100_000) for _ in range(4000)]
    kept = blocks[::100]
    full = _resident_mb()
    del blocks
    release_free_memory()
    assert len(kept) == 40
    assert full - _resident_mb() > 200


def test_release_free_memory_does_nothing_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory, "_malloc_trim", lambda: calls.append)
    release_free_memory()
    assert calls == [0]
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    release_free_memory()
    assert calls == [0]
