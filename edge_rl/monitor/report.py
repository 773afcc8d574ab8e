"""The proof at the end of a run: report.json for programs, report.md and curves.png for people, a table on the console.

Knows evaluation records and the run folder; measures nothing itself. Every rate stands with its 95 % interval.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from edge_rl.errors import CheckpointError
from edge_rl.monitor.curves import draw_curves
from edge_rl.monitor.metrics import read_metrics, write_text_atomically
from edge_rl.types import Estimate, EvalReport

REPORT_JSON = "report.json"
REPORT_MD = "report.md"
CURVES_PNG = "curves.png"
RESERVED = ("rows", "paired", "minutes", "peak_rss_mb")
COLUMNS = ("", "pass@1", "95 % interval", "pass@8", "code share", "tokens per answer", "minutes")
SHORT_COLUMNS = ("", "pass@1", "95 % interval", "pass@8", "code", "tokens", "minutes")
"""The same where a line has 80 characters."""

LIMITS = (
    "The intervals resample the test questions. They do not cover the luck of the training seed: run other seeds too.",
    "The test questions have wordings and numbers that training never saw, but they are of the same kind of task. "
    "A gain here says nothing about other tasks, and nothing about what the model has lost elsewhere.",
    "Every row is asked with the same prompt. A base model that does not know the answer format is counted wrong, "
    "so part of its gap is format and not ability; the row of the warm start shows that part.",
    "A row without pass@8 was asked fewer than 8 times a question, so its pass@1 is also less exact.",
)
"""What the numbers do not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One checkpoint in the table."""

    name: str
    """"base", "warm start", "tuned", "GGUF q8_0", ..."""
    pass_at_1: Estimate
    pass_at_8: float | None
    """None where fewer than 8 completions per question were judged."""
    code_share: float
    """Share of completions with at least one tool call."""
    tokens: float
    """Mean policy tokens of a completion."""
    minutes: float | None = None
    """Minutes that making this checkpoint took, its measurement not included."""


def report_row(report: EvalReport, *, minutes: float | None = None) -> ReportRow:
    """Return the table row of a measured checkpoint."""
    return ReportRow(
        name=report.name,
        pass_at_1=report.pass_at_1,
        pass_at_8=None if report.pass_at_8 is None else report.pass_at_8.value,
        code_share=report.code_share,
        tokens=report.tokens,
        minutes=minutes,
    )


def write_report(
    run_dir: Path,
    rows: Sequence[ReportRow],
    paired: Mapping[str, Estimate],
    minutes: float,
    peak_rss_mb: float,
    extras: Mapping[str, Any],
) -> None:
    """Write report.json, report.md and curves.png into the run folder.

    `paired` maps "tuned_vs_base", "tuned_vs_warm_start" to differences of pass@1. `extras` (seed, model, ...) go into
    report.json as they are; of them `files` (label -> path), `validation` (pairs of steps taken and pass@1, 0 steps = warm
    start) and `paired_at_8` (as `shown_differences` takes it) also have a place in the report.

    Raises: CheckpointError where the folder cannot be written; MissingExtraError without matplotlib.
    """
    content = report_content(rows, paired, minutes, peak_rss_mb, extras)
    shown = shown_differences(paired, extras)
    validation = [(float(step), float(value)) for step, value in extras.get("validation", ())]
    try:
        write_text_atomically(run_dir / REPORT_JSON, json.dumps(content, indent=2, default=str) + "\n")
        draw_curves(run_dir / CURVES_PNG, read_metrics(run_dir), validation, title=run_dir.name)
        write_text_atomically(run_dir / REPORT_MD, report_markdown(run_dir, rows, shown, content))
    except OSError as error:
        raise CheckpointError(f"cannot write the report into {run_dir}: {error.strerror or error}") from error


def report_content(
    rows: Sequence[ReportRow],
    paired: Mapping[str, Estimate],
    minutes: float,
    peak_rss_mb: float,
    extras: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what report.json holds; the four reserved keys cannot be overwritten by `extras`."""
    clash = [key for key in RESERVED if key in extras]
    assert not clash, f"extras must not hold {clash}"
    return {
        "rows": [
            {
                "name": row.name,
                "pass_at_1": row.pass_at_1.value,
                "interval": [row.pass_at_1.low, row.pass_at_1.high],
                "pass_at_8": row.pass_at_8,
                "code_share": row.code_share,
                "tokens": row.tokens,
            }
            for row in rows
        ],
        "paired": {
            name: {"diff": estimate.value, "low": estimate.low, "high": estimate.high}
            for name, estimate in paired.items()
        },
        "minutes": minutes,
        "peak_rss_mb": peak_rss_mb,
        "row_minutes": {row.name: row.minutes for row in rows if row.minutes is not None},
        **extras,
    }


def report_markdown(
    run_dir: Path, rows: Sequence[ReportRow], paired: Mapping[str, Estimate], content: Mapping[str, Any]
) -> str:
    """Return the report for people."""
    facts = {
        key: value for key, value in content.items() if isinstance(value, str | int | float) and key not in RESERVED
    }
    files = {"this report": run_dir / REPORT_MD, "the same for programs": run_dir / REPORT_JSON}
    files |= {str(label): path for label, path in content.get("files", {}).items()}
    lines = [
        f"# {run_dir.name}",
        "",
        f"{content['minutes']:.1f} minutes in all, at most {content['peak_rss_mb']:.0f} MiB of memory."
        + "".join(f" {key.replace('_', ' ').capitalize()}: {value}." for key, value in facts.items()),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * (len(COLUMNS) - 1),
        *("| " + " | ".join(row_cells(row)) + " |" for row in rows),
        "",
        "## Paired differences on the same questions",
        "",
        *(f"- {paired_line(name, estimate)}" for name, estimate in paired.items()),
        "",
        f"![curves]({CURVES_PNG})",
        "",
        "## Where everything lies",
        "",
        *(f"- {label}: `{path}`" for label, path in files.items()),
        "",
        "## What these numbers do not show",
        "",
        *(f"- {limit}" for limit in LIMITS),
    ]
    return "\n".join(lines) + "\n"


def shown_differences(paired: Mapping[str, Estimate], extras: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the differences of pass@1 and, from extras["paired_at_8"], those of pass@8, by the name they are shown with."""
    at_8 = {
        f"pass@8 of {entry['questions']} questions, {name}": Estimate(
            value=entry["diff"], low=entry["low"], high=entry["high"]
        )
        for name, entry in extras.get("paired_at_8", {}).items()
    }
    return {**paired, **at_8}


def row_cells(row: ReportRow) -> tuple[str, ...]:
    """Return the cells of one row, in the order of COLUMNS."""
    return (
        row.name,
        f"{row.pass_at_1.value:.1%}",
        f"{row.pass_at_1.low:.1%} to {row.pass_at_1.high:.1%}",
        "-" if row.pass_at_8 is None else f"{row.pass_at_8:.1%}",
        f"{row.code_share:.0%}",
        f"{row.tokens:.0f}",
        "-" if row.minutes is None else f"{row.minutes:.1f}",
    )


def paired_line(name: str, estimate: Estimate) -> str:
    """Return one difference in words, and whether chance is excluded."""
    what = name.replace("_vs_", " against ").replace("_", " ")
    verdict = "excludes 0" if estimate.low > 0 or estimate.high < 0 else "includes 0: it may be chance"
    low, high = 100 * estimate.low, 100 * estimate.high
    return f"{what}: {100 * estimate.value:+.1f} points ({low:+.1f} to {high:+.1f}), the interval {verdict}"


def print_report(
    run_dir: Path, rows: Sequence[ReportRow], paired: Mapping[str, Estimate], console: Console | None = None
) -> None:
    """Print the table, the differences, and where the whole report lies."""
    out = console or Console(highlight=False)
    table = Table(title=f"{run_dir.name}: held-out questions, without hints", title_justify="left", box=SIMPLE_HEAD)
    for index, column in enumerate(SHORT_COLUMNS):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row_cells(row))
    out.print(table)
    for name, estimate in paired.items():
        out.print(paired_line(name, estimate), markup=False, soft_wrap=True)
    out.print(f"report: {run_dir / REPORT_MD}", markup=False, soft_wrap=True)


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, in MiB; child processes are not counted."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / (1 << 20)
    import resource  # POSIX only

    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20)
