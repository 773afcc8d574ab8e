"""Finished groups on disk, between whoever collects and whoever trains. Knows records and files; no model.

A file holds one group with everything that a later update needs: token ids, the engine's log-probabilities, the trainer's,
and the policy version of each token. Files are numbered in the order of writing and appear whole or not at all. A reader
keeps a position of its own, so nothing is taken from the disk before a checkpoint says that it was used.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edge_rl.errors import CheckpointError, DataError
from edge_rl.types import Group

_GROUP = TypeAdapter(Group)
_DIGITS = 8


class RolloutQueue:
    """A folder of groups, read in order. One writer and one reader at a time may use it."""

    def __init__(self, folder: Path, *, position: int = 0) -> None:
        """`position`: number of the first group that was not read yet."""
        self._folder = folder
        self.position = position
        self.num_expired = 0
        """Groups that were left out because they were too old."""

    @property
    def end(self) -> int:
        """Return the number that the next group will have."""
        return max([*self._numbers(), self.position - 1]) + 1

    def put(self, groups: Sequence[Group]) -> None:
        """Append finished groups.

        Raises: DataError for an unfinished group; CheckpointError where the folder cannot be written.
        """
        following = self.end
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for offset, group in enumerate(groups):
                if not group.is_finished:
                    raise DataError(f"group {group.id} is unfinished; only whole groups can be trained on")
                self._write(self._path(following + offset), _GROUP.dump_json(group))
        except OSError as error:
            raise CheckpointError(f"cannot write {self._folder}: {error.strerror or error}; make room") from error

    def take(self, count: int, *, oldest_version: int) -> list[Group]:
        """Return up to `count` groups from the position on, and move it; groups born before `oldest_version` are left out.

        Raises: DataError where a file is damaged.
        """
        found: list[Group] = []
        for number in self._numbers():
            if len(found) == count:
                break
            if number < self.position:
                continue
            group = self._read(self._path(number))
            self.position = number + 1
            if group.born < oldest_version:
                self.num_expired += 1
            else:
                found.append(group)
        return found

    def __len__(self) -> int:
        """Return the groups that were not read yet."""
        return sum(number >= self.position for number in self._numbers())

    def forget(self) -> None:
        """Delete what was read: to be called once a checkpoint holds what came of it."""
        for number in self._numbers():
            if number < self.position:
                self._path(number).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        paths = self._folder.glob("*.json") if self._folder.is_dir() else ()
        return sorted(int(path.stem) for path in paths if path.stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:0{_DIGITS}d}.json"

    def _write(self, path: Path, content: bytes) -> None:
        handle, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)

    def _read(self, path: Path) -> Group:
        try:
            return _GROUP.validate_json(path.read_bytes())
        except (OSError, ValidationError, DataError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{path} holds no group ({reason}); delete it to go on without it") from error
