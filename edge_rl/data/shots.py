"""Worked examples in the prompt, fewer as the policy needs them less (ICRL). Knows samples and numbers; no model, no text.

Source: ICRL, arXiv:2603.08068 (3, then 2, then 0 examples, 100 steps each). Here a stage also ends when the policy is right
often enough, since with few samples a fixed number of steps is a guess. Evaluation never sees an example.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any

from edge_rl.errors import ConfigError, DataError
from edge_rl.types import Sample, derive_seed

WINDOW = 3
"""Steps whose mean solve rate decides."""


@dataclass(slots=True)
class ShotSchedule:
    """How many worked examples a prompt gets; a stage ends by success or after its share of the steps.

    Example: stages (3, 2, 0) over 30 steps: 3 examples for at most 10 steps, 2 for at most 10, then none.
    """

    stages: tuple[int, ...]
    num_steps: int
    """Steps of the run."""
    success: float
    """Mean solve rate over WINDOW steps at which the next stage begins."""
    stage: int = 0
    rates: list[float] = field(default_factory=list[float])
    """Solve rates of the steps of this stage."""

    def __post_init__(self) -> None:
        if not self.stages or min(self.stages) < 0 or self.stages[-1] != 0:
            raise ConfigError(
                f"data.shots is {list(self.stages)}; it lists the worked examples of each stage and ends with 0, "
                "because the model is measured without any"
            )

    @property
    def shots(self) -> int:
        """Worked examples of the next prompts."""
        return self.stages[self.stage]

    def record(self, solve_rate: float) -> None:
        """Take note of one step; move to the next stage where it is time."""
        self.rates.append(solve_rate)
        is_good = len(self.rates) >= WINDOW and fmean(self.rates[-WINDOW:]) >= self.success
        is_late = len(self.rates) * len(self.stages) >= self.num_steps
        if self.stage + 1 < len(self.stages) and (is_good or is_late):
            self.stage += 1
            self.rates = []

    def state(self) -> dict[str, Any]:
        """Return what `load_state` needs; holds only what JSON can."""
        return {"stage": self.stage, "rates": list(self.rates)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state` was taken."""
        self.stage = int(state["stage"])
        self.rates = [float(rate) for rate in state["rates"]]


def choose_examples(sample: Sample, traced: Sequence[Sample], count: int, *, seed: int) -> list[Sample]:
    """Return `count` samples with a trace, other than the sample itself; they depend on the sample and the seed only.

    Raises: DataError where there are not so many.
    """
    others = [other for other in traced if other.id != sample.id and other.question != sample.question]
    if len(others) < count:
        raise DataError(
            f"data.shots asks for {count} worked examples and {len(others)} other samples carry a trace; add traces or "
            "ask for fewer"
        )
    return Random(derive_seed(seed, "shots", sample.id)).sample(others, count)
