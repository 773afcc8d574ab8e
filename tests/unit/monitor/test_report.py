import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from edge_rl.monitor.curves import draw_curves, running_mean, series
from edge_rl.monitor.metrics import MetricsWriter
from edge_rl.monitor.report import (
    ReportRow,
    paired_line,
    peak_rss_mb,
    print_report,
    report_content,
    report_row,
    row_cells,
    shown_differences,
    write_report,
)
from edge_rl.types import Estimate, EvalReport, StepReport

pytest.importorskip("matplotlib")

ROWS = [
    ReportRow(
        name="base", pass_at_1=Estimate(value=0.0, low=0.0, high=0.0), pass_at_8=0.0, code_share=0.0, tokens=41.25
    ),
    ReportRow(
        name="tuned",
        pass_at_1=Estimate(value=0.4625, low=0.41, high=0.52),
        pass_at_8=None,
        code_share=0.98,
        tokens=58.4,
        minutes=17.25,
    ),
]
PAIRED = {
    "tuned_vs_base": Estimate(value=0.4625, low=0.41, high=0.52),
    "tuned_vs_warm_start": Estimate(value=0.1, low=-0.01, high=0.2),
}


def test_row_takes_over_what_was_measured() -> None:
    report = EvalReport(
        name="tuned",
        num_correct={"a": 1},
        num_samples={"a": 8},
        pass_at_1=Estimate(value=0.125, low=0.1, high=0.2),
        pass_at_8=Estimate(value=1.0, low=1.0, high=1.0),
        code_share=0.5,
        tokens=33.0,
        unjudged=0,
        truncated=0,
        seconds=9.0,
    )
    row = report_row(report, minutes=2.0)
    assert row == ReportRow(
        name="tuned", pass_at_1=report.pass_at_1, pass_at_8=1.0, code_share=0.5, tokens=33.0, minutes=2.0
    )


def test_differences_of_pass_at_8_are_shown_with_their_questions(tmp_path: Path) -> None:
    extras = {"paired_at_8": {"tuned_vs_warm_start": {"diff": 0.25, "low": 0.0, "high": 0.5, "questions": 16}}}
    shown = shown_differences(PAIRED, extras)
    assert list(shown) == [*PAIRED, "pass@8 of 16 questions, tuned_vs_warm_start"]
    line = paired_line(*list(shown.items())[-1])
    assert line.startswith("pass@8 of 16 questions, tuned against warm start: +25.0 points (+0.0 to +50.0)")
    assert "may be chance" in line
    assert shown_differences(PAIRED, {}) == PAIRED
    write_report(tmp_path, ROWS, PAIRED, 1.0, 1.0, extras)
    assert line in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_content_has_exactly_the_agreed_keys() -> None:
    content = report_content(ROWS, PAIRED, 27.5, 3211.0, {"seed": 3, "model": "m"})
    assert content["rows"][1] == {
        "name": "tuned",
        "pass_at_1": 0.4625,
        "interval": [0.41, 0.52],
        "pass_at_8": None,
        "code_share": 0.98,
        "tokens": 58.4,
    }
    assert content["paired"]["tuned_vs_warm_start"] == {"diff": 0.1, "low": -0.01, "high": 0.2}
    assert (content["minutes"], content["peak_rss_mb"], content["seed"], content["model"]) == (27.5, 3211.0, 3, "m")
    assert content["row_minutes"] == {"tuned": 17.25}


def test_extras_cannot_replace_a_measurement() -> None:
    with pytest.raises(AssertionError, match="minutes"):
        report_content(ROWS, PAIRED, 27.5, 3211.0, {"minutes": 1})


def test_report_is_written_whole(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for step in range(3):
        writer.write_step(StepReport(step=step, metrics={"reward/solve_rate": 0.1 * step, "seconds/rollout": 2.0}))
    write_report(
        tmp_path, ROWS, PAIRED, 27.5, 3211.0, {"seed": 3, "validation": [(0, 0.2), (2, 0.4)], "files": {"GGUF": "x"}}
    )
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["validation"] == [[0, 0.2], [2, 0.4]]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "report.md").read_text()
    assert "| tuned | 46.2% | 41.0% to 52.0% | - | 98% | 58 | 17.2 |" in text
    assert "27.5 minutes in all, at most 3211 MiB of memory. Seed: 3." in text
    assert "- GGUF: `x`" in text
    assert "do not show" in text
    assert list(tmp_path.glob(".*partial")) == []


def test_difference_says_whether_chance_is_excluded() -> None:
    assert paired_line("tuned_vs_base", PAIRED["tuned_vs_base"]) == (
        "tuned against base: +46.2 points (+41.0 to +52.0), the interval excludes 0"
    )
    assert "includes 0" in paired_line("tuned_vs_warm_start", PAIRED["tuned_vs_warm_start"])
    assert "excludes 0" in paired_line("a_vs_b", Estimate(value=-0.2, low=-0.3, high=-0.1))
    assert "includes 0" in paired_line("a_vs_b", Estimate(value=0.2, low=0.0, high=0.3))


def test_console_table_fits_eighty_columns(tmp_path: Path) -> None:
    out = io.StringIO()
    print_report(tmp_path, ROWS, PAIRED, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    table = [line for line in lines if line.strip().startswith("tuned ") and "%" in line]
    assert table[0].split() == ["tuned", "46.2%", "41.0%", "to", "52.0%", "-", "98%", "58", "17.2"]


def test_cells_follow_the_columns() -> None:
    assert row_cells(ROWS[0]) == ("base", "0.0%", "0.0% to 0.0%", "0.0%", "0%", "41", "-")


def test_curves_of_a_run_without_steps_can_be_drawn(tmp_path: Path) -> None:
    draw_curves(tmp_path / "curves.png", [])
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_running_mean_by_hand() -> None:
    assert running_mean([1.0, 3.0, 5.0, 7.0], window=2) == [1.0, 2.0, 4.0, 6.0]


def test_series_counts_steps_taken_and_leaves_gaps_out() -> None:
    reports = [
        StepReport(step=0, metrics={"a": 1.0}),
        StepReport(step=1, metrics={}),
        StepReport(step=2, metrics={"a": 3.0}),
    ]
    assert series(reports, "a") == ([1.0, 3.0], [1.0, 3.0])


def test_peak_memory_is_plausible() -> None:
    assert 10 < peak_rss_mb() < 1e6
