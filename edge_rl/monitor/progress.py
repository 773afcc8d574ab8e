"""One readable line a step on the console. Knows metric names and numbers; nothing of files, models or training."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from edge_rl.types import EvalReport, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One number of the line."""

    label: str
    metric: str
    """Name in StepReport.metrics; the column stays out of a line that lacks it."""
    form: str
    """Format of the number, e.g. ".0%"."""


COLUMNS: tuple[Column, ...] = (
    Column(label="solved", metric="reward/solve_rate", form=".0%"),
    Column(label="live groups", metric="groups/live", form=".0f"),
    Column(label="reward", metric="reward/mean", form="+.2f"),
    Column(label="tokens", metric="rollout/tokens", form=".0f"),
    Column(label="entropy", metric="loss/entropy", form=".2f"),
    Column(label="rollout s", metric="seconds/rollout", form=".1f"),
    Column(label="update s", metric="seconds/update", form=".1f"),
)
"""To show another number: add a row."""


class Progress:
    """Tells a person what a run does; on a terminal with colours, elsewhere as plain lines."""

    def __init__(self, console: Console | None = None) -> None:
        # stderr: stdout belongs to results that a program may read
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._begun = time.monotonic()

    def phase(self, name: str) -> None:
        """Announce the next phase with the minutes since the start."""
        self._print(f"[bold]{self._clock()} {name}[/bold]")

    def note(self, text: str) -> None:
        """Say one thing that is worth knowing."""
        self._print(f"{self._clock()}   {text}", markup=False)

    def step(self, report: StepReport, num_steps: int) -> None:
        """Print the line of one step; `report.step` counts from 0, people from 1."""
        self._print(
            f"{self._clock()}   step {report.step + 1:>3}/{num_steps}  {step_line(report.metrics)}", markup=False
        )

    def evaluation(self, report: EvalReport) -> None:
        """Print one measured checkpoint."""
        estimate = report.pass_at_1
        at_8 = "" if report.pass_at_8 is None else f"  pass@8 {report.pass_at_8.value:.1%}"
        self._print(
            f"{self._clock()}   {report.name}: pass@1 {estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"
            f"{at_8}  code {report.code_share:.0%}  {report.tokens:.0f} tokens  {report.seconds:.0f} s",
            markup=False,
        )

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        return f"{minutes:02d}:{seconds:02d}"

    def _print(self, text: str, *, markup: bool = True) -> None:
        self.console.print(text, markup=markup)


def step_line(metrics: Mapping[str, float], columns: Sequence[Column] = COLUMNS) -> str:
    """Return the known numbers of one step as text; a number that is not finite is shouted."""
    parts: list[str] = []
    for column in columns:
        if column.metric in metrics:
            value = metrics[column.metric]
            shown = f"{value:{column.form}}" if math.isfinite(value) else str(value).upper()
            parts.append(f"{column.label} {shown}")
    return "  ".join(parts)
