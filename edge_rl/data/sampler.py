"""The order in which prompts are visited: every sample once per epoch, settled ones parked. Knows only sample ids.

A sample is parked when its running success rate says that its groups carry no signal: solved (nearly always right) or
dead (nearly never right). It sits out some epochs and then comes back, because the policy may have changed.

Inside an epoch the order is shuffled, from easy to hard (curriculum), or mixed, so that neighbours are of unlike difficulty
and every step gets some of each. Difficulty is the running success rate; a sample that was not met yet stands in the middle.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from edge_rl.config import SampleOrder
from edge_rl.errors import ConfigError, DataError
from edge_rl.types import derive_seed

SOLVED_ABOVE = 0.95
DEAD_BELOW = 0.02
MIN_VISITS = 2
EMA_DECAY = 0.5
"""Weight of the past in the running success rate; the first visit sets it."""
UNMET = 0.5
"""Success rate that a sample counts with before its first visit."""
PARTS = 3
"""Easy, middle, hard."""
STATE_VERSION = 2


class Sampler:
    """Seeded order over sample ids that resumes exactly.

    Example: 5 ids, `next(2)` three times: five different ids, then the first of the second epoch.
    """

    def __init__(
        self, sample_ids: Sequence[str], seed: int, *, park_epochs: int = 2, order: SampleOrder = "shuffled"
    ) -> None:
        if not sample_ids:
            raise DataError("the sampler got no samples; is there a train split in the sample file?")
        if len(set(sample_ids)) < len(sample_ids):
            raise DataError("the sampler got an id twice; ids must be unique")
        if park_epochs < 1:
            raise ConfigError(f"park_epochs is {park_epochs}; expected at least 1")
        self._ids = tuple(sample_ids)
        self._seed = seed
        self._park_epochs = park_epochs
        self._order = order
        self._epoch = 0
        self._pending: list[str] = []
        self._visits: dict[str, int] = {}
        self._success: dict[str, float] = {}
        self._parked: dict[str, int] = {}

    @property
    def epoch(self) -> int:
        """Epoch of the last id handed out, from 1; 0 before the first."""
        return self._epoch

    @property
    def parked(self) -> Mapping[str, int]:
        """Parked id -> epoch in which it comes back."""
        return dict(self._parked)

    @property
    def success(self) -> Mapping[str, float]:
        """Running success rate per recorded id."""
        return dict(self._success)

    def next(self, n: int) -> list[str]:
        """Return the next `n` ids; no id twice in one call unless `n` exceeds the number of samples.

        Where an epoch ends inside a call, the next one begins; its ids that the call already holds come later.

        Raises: ConfigError if n < 1.
        """
        if n < 1:
            raise ConfigError(f"asked the sampler for {n} samples; expected at least 1")
        batch: list[str] = []
        while len(batch) < n:
            if not self._pending:
                self._start_epoch(n)
            # An epoch holds at least n ids, so only a call for more than all samples has to repeat one.
            sample_id = next((name for name in self._pending if name not in batch), self._pending[0])
            self._pending.remove(sample_id)
            batch.append(sample_id)
        return batch

    def record(self, sample_id: str, solve_rate: float) -> None:
        """Take note of one visit: the share of right rollouts in the group; parks or frees the sample.

        Raises: DataError for an unknown id or a rate outside of 0..1.
        """
        if sample_id not in self._ids:
            raise DataError(f"sample {sample_id!r} is not one of the sampler's {len(self._ids)} ids")
        if not 0.0 <= solve_rate <= 1.0:
            raise DataError(f"sample {sample_id}: solve rate {solve_rate}; expected 0 to 1")
        past = self._success.get(sample_id, solve_rate)
        success = EMA_DECAY * past + (1 - EMA_DECAY) * solve_rate
        self._success[sample_id] = success
        self._visits[sample_id] = self._visits.get(sample_id, 0) + 1
        is_settled = success > SOLVED_ABOVE or success < DEAD_BELOW
        if is_settled and self._visits[sample_id] >= MIN_VISITS:
            self._parked[sample_id] = self._epoch + self._park_epochs + 1
        else:
            self._parked.pop(sample_id, None)

    def state(self) -> dict[str, Any]:
        """Return everything that `load_state` needs; holds only what JSON can."""
        return {
            "version": STATE_VERSION,
            "ids": list(self._ids),
            "seed": self._seed,
            "park_epochs": self._park_epochs,
            "order": self._order,
            "epoch": self._epoch,
            "pending": list(self._pending),
            "visits": dict(self._visits),
            "success": dict(self._success),
            "parked": dict(self._parked),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken.

        Raises: DataError if it is of another version, other samples, another seed, park_epochs or order.
        """
        own = self.state()
        for key in ("version", "ids", "seed", "park_epochs", "order"):
            if state.get(key) != own[key]:
                raise DataError(
                    f"the saved sampler state has another {key} than this run; resume with the same data and settings, "
                    "or start a new run"
                )
        self._epoch = state["epoch"]
        self._pending = list(state["pending"])
        self._visits = dict(state["visits"])
        self._success = dict(state["success"])
        self._parked = dict(state["parked"])

    def _start_epoch(self, n: int) -> None:
        """Shuffle the ids that are not parked; free parked ones, first those due first, until `n` are left."""
        self._epoch += 1
        self._parked = {name: due for name, due in self._parked.items() if due > self._epoch}
        by_due = sorted(self._parked, key=lambda name: (self._parked[name], self._ids.index(name)))
        for name in by_due[: max(0, n - (len(self._ids) - len(by_due)))]:
            del self._parked[name]
        self._pending = [name for name in self._ids if name not in self._parked]
        Random(derive_seed(self._seed, "sampler", self._epoch)).shuffle(self._pending)
        if self._order != "shuffled":
            # a stable sort: samples of equal success keep the shuffled order
            self._pending.sort(key=lambda name: self._success.get(name, UNMET), reverse=True)
        if self._order == "mixed":
            self._pending = interleave(self._pending, PARTS)


def interleave(names: Sequence[str], parts: int) -> list[str]:
    """Return the names in turn from `parts` equal runs of the list. Example: a b c d e f, 3 parts -> a c e b d f."""
    size = -(-len(names) // parts)
    runs = [names[start : start + size] for start in range(0, len(names), size)] if names else []
    return [run[place] for place in range(size) for run in runs if place < len(run)]
