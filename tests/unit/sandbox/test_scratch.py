import os
from pathlib import Path

from edge_rl.sandbox import scratch
from edge_rl.sandbox.inside.removal import remove


def make_deep_tree(root: Path, depth: int, name: str = "d") -> None:
    before = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(depth):
            Path(name).mkdir()
            os.chdir(name)
    finally:
        os.chdir(before)


def test_remove_deletes_a_tree_too_deep_for_paths(tmp_path: Path) -> None:
    victim = tmp_path / "scratch"
    victim.mkdir()
    make_deep_tree(victim, 20, name="d" * 250)  # 5,000 characters: longer than a path may be
    remove(victim)
    assert not victim.exists()


def test_remove_does_not_follow_links(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("x", encoding="utf-8")
    victim = tmp_path / "scratch"
    (victim / "inner").mkdir(parents=True)
    (victim / "link").symlink_to(keep)
    (victim / "inner" / "link").symlink_to(keep)
    remove(victim)
    assert (keep / "file").read_text(encoding="utf-8") == "x"
    assert not victim.exists()


def test_remove_survives_names_like_its_own(tmp_path: Path) -> None:
    victim = tmp_path / "scratch"
    (victim / "a").mkdir(parents=True)
    (victim / "a" / "b").write_text("inner", encoding="utf-8")
    (victim / ".edge_rl-0").write_text("outer", encoding="utf-8")
    remove(victim)
    assert not victim.exists()


def test_is_over_counts_bytes_on_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 8192)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    assert not scratch.is_over(tmp_path, max_bytes=32_768, max_entries=10)
    assert scratch.is_over(tmp_path, max_bytes=8_191, max_entries=10)


def test_is_over_counts_entries(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    assert not scratch.is_over(tmp_path, max_bytes=1 << 20, max_entries=3)
    assert scratch.is_over(tmp_path, max_bytes=1 << 20, max_entries=2)


def test_is_over_holds_for_a_deep_tree(tmp_path: Path) -> None:
    make_deep_tree(tmp_path, 60)
    assert not scratch.is_over(tmp_path, max_bytes=1 << 30, max_entries=1_000)
    make_deep_tree(tmp_path / "d" / "d", 0)
    (tmp_path / "other").mkdir()
    make_deep_tree(tmp_path / "other", 70)
    assert scratch.is_over(tmp_path, max_bytes=1 << 30, max_entries=1_000)
