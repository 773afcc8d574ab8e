"""A queue on disk: order, age, damage, and that nothing is lost before it was used."""

from pathlib import Path

import pytest

from edge_rl.errors import DataError
from edge_rl.rollout.disk_queue import RolloutQueue
from edge_rl.types import Group
from tests.builders import make_group, make_rollout, policy, tool


def _group(name: str, *, born: int = 0) -> Group:
    rollouts = [
        make_rollout(policy(1, 2, logprobs=[-0.25, -1.5], version=born), tool(3), group_id=name, text="ü \ud7ff"),
        make_rollout(policy(4, version=born), group_id=name, member=1),
    ]
    return make_group(rollouts, group_id=name, born=born)


def _ids(groups: list[Group]) -> list[str]:
    return [group.id for group in groups]


def test_groups_come_back_whole_and_in_order(tmp_path: Path) -> None:
    groups = [_group(str(index)) for index in range(5)]
    writer = RolloutQueue(tmp_path / "queue")
    writer.put(groups[:3])
    writer.put(groups[3:])
    reader = RolloutQueue(tmp_path / "queue")
    assert len(reader) == 5
    assert reader.take(2, oldest_version=0) == groups[:2]
    assert reader.take(9, oldest_version=0) == groups[2:]
    assert reader.take(9, oldest_version=0) == []
    assert len(reader) == 0


def test_a_group_beyond_the_age_limit_is_left_out_and_counted(tmp_path: Path) -> None:
    queue = RolloutQueue(tmp_path)
    queue.put([_group("old", born=1), _group("new", born=3), _group("older", born=0), _group("newer", born=4)])
    assert _ids(queue.take(2, oldest_version=3)) == ["new", "newer"]
    assert queue.num_expired == 2


def test_what_was_read_stays_until_it_is_forgotten(tmp_path: Path) -> None:
    queue = RolloutQueue(tmp_path)
    queue.put([_group(str(index)) for index in range(3)])
    assert _ids(queue.take(2, oldest_version=0)) == ["0", "1"]
    # a crash before the checkpoint: the same groups come again
    assert _ids(RolloutQueue(tmp_path).take(2, oldest_version=0)) == ["0", "1"]
    queue.forget()
    assert _ids(RolloutQueue(tmp_path).take(9, oldest_version=0)) == ["2"]


def test_numbers_go_on_where_files_were_forgotten(tmp_path: Path) -> None:
    queue = RolloutQueue(tmp_path)
    queue.put([_group("0")])
    queue.take(1, oldest_version=0)
    queue.forget()
    queue.put([_group("1")])
    assert _ids(queue.take(9, oldest_version=0)) == ["1"]
    # a writer that knows of no position must not write before that of the reader
    assert _ids(RolloutQueue(tmp_path, position=queue.position).take(9, oldest_version=0)) == []


def test_half_written_and_foreign_files_are_no_groups(tmp_path: Path) -> None:
    queue = RolloutQueue(tmp_path)
    queue.put([_group("0")])
    (tmp_path / ".x.partial").write_text("{")
    (tmp_path / "notes.json").write_text("{}")
    assert len(queue) == 1


@pytest.mark.parametrize("content", ["", "{", '{"id": "x"}', "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    queue = RolloutQueue(tmp_path)
    queue.put([_group("0")])
    (tmp_path / "00000000.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"00000000\.json holds no group .*delete it"):
        queue.take(1, oldest_version=0)


def test_an_unfinished_group_is_refused(tmp_path: Path) -> None:
    unfinished = make_group([make_rollout(policy(1), stop_reason=None)])
    with pytest.raises(DataError, match="only whole groups"):
        RolloutQueue(tmp_path).put([unfinished])
