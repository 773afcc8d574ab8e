"""The picture of a run: how its numbers moved step by step. Knows metric names and matplotlib; no model, no console."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_rl.errors import require
from edge_rl.types import StepReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, GREY = "#2b6cb0", "#c05621", "#2f855a", "#a0aec0"


def draw_curves(
    path: Path, reports: Sequence[StepReport], validation: Sequence[tuple[float, float]] = (), title: str = ""
) -> None:
    """Write a PNG with six panels.

    `validation` holds (optimizer steps taken, pass@1); 0 steps is the warm start.
    Raises: MissingExtraError without matplotlib.
    """
    require("matplotlib", "train")
    from matplotlib.figure import Figure  # no pyplot: no window system, no global state

    figure = Figure(figsize=(12, 6.4), layout="constrained", dpi=120)
    axes = [axis for row in figure.subplots(2, 3, squeeze=False) for axis in row]
    _draw_solve_rate(axes[0], reports)
    _draw_validation(axes[1], validation)
    _draw_lines(axes[2], reports, "groups per step", {"groups/live": ("live", BLUE), "groups/silent": ("silent", GREY)})
    _draw_lines(axes[3], reports, "entropy (nats per token)", {"loss/entropy": ("", BLUE)})
    _draw_lines(axes[4], reports, "tokens per completion", {"rollout/tokens": ("", BLUE)})
    _draw_seconds(axes[5], reports)
    for axis in axes:
        _tidy(axis)
    if title:
        figure.suptitle(title, fontsize=11)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png")
    partial.replace(path)


def running_mean(values: Sequence[float], window: int = 5) -> list[float]:
    """Return the mean of each value and up to `window` - 1 before it."""
    tails = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(tail) / len(tail) for tail in tails]


def series(reports: Sequence[StepReport], metric: str) -> tuple[list[float], list[float]]:
    """Return (optimizer steps taken, values) of the steps that have this metric."""
    found = [(report.step + 1.0, report.metrics[metric]) for report in reports if metric in report.metrics]
    return [step for step, _ in found], [value for _, value in found]


def _draw_solve_rate(axis: "Axes", reports: Sequence[StepReport]) -> None:
    steps, values = series(reports, "reward/solve_rate")
    axis.plot(steps, values, ".", color=GREY, markersize=5, label="step")
    axis.plot(steps, running_mean(values), color=BLUE, linewidth=2, label="mean of 5")
    axis.set_title("solved training rollouts")
    axis.set_ylim(0, 1)


def _draw_validation(axis: "Axes", validation: Sequence[tuple[float, float]]) -> None:
    points = sorted(validation)
    axis.plot(
        [step for step, _ in points], [value for _, value in points], "o-", color=GREEN, linewidth=2, markersize=4
    )
    for place, (step, value) in {"left": points[0], "right": points[-1]}.items() if points else ():
        text = f"{value:.0%}" + (" (warm start)" if step == 0 else "")
        below_or_above = (0, -14) if place == "left" else (0, 7)
        axis.annotate(text, (step, value), below_or_above, textcoords="offset points", fontsize=8, ha=place)
    axis.set_title("validation pass@1 (held out, hint-free)")
    axis.set_ylim(0, 1)


def _draw_lines(axis: "Axes", reports: Sequence[StepReport], title: str, lines: Mapping[str, tuple[str, str]]) -> None:
    for metric, (label, colour) in lines.items():
        steps, values = series(reports, metric)
        axis.plot(steps, values, color=colour, linewidth=1.6, label=label or "_nolegend_")
    axis.set_title(title)
    axis.set_ylim(bottom=0)


def _draw_seconds(axis: "Axes", reports: Sequence[StepReport]) -> None:
    floor: dict[float, float] = {}
    for metric, label, colour in (
        ("seconds/rollout", "rollout", BLUE),
        ("seconds/update", "update", ORANGE),
        ("seconds/validation", "validation", GREEN),
    ):
        steps, values = series(reports, metric)
        if steps:
            axis.bar(
                steps, values, width=0.8, bottom=[floor.get(step, 0.0) for step in steps], color=colour, label=label
            )
        for step, value in zip(steps, values, strict=True):
            floor[step] = floor.get(step, 0.0) + value
    axis.set_title("seconds per step")


def _tidy(axis: "Axes") -> None:
    axis.set_xlabel("optimizer steps", fontsize=8)
    axis.title.set_fontsize(10)
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, color="#e2e8f0", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=8, frameon=False)
    if not axis.has_data():
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=GREY)
