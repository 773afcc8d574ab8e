import io
import math

from rich.console import Console

from edge_rl.monitor.progress import Progress, step_line
from edge_rl.types import Estimate, EvalReport, StepReport


def test_step_line_shows_what_is_known_and_shouts_what_is_not_finite() -> None:
    metrics = {"reward/solve_rate": 0.625, "groups/live": 4.0, "reward/mean": math.nan, "unknown/metric": 1.0}
    assert step_line(metrics) == "solved 62%  live groups 4  reward NAN"


def test_plain_text_where_no_terminal_is() -> None:
    out = io.StringIO()
    progress = Progress(Console(file=out, highlight=False))
    progress.phase("warm start")
    progress.note("[not markup] 1/2")
    progress.step(StepReport(step=0, metrics={"reward/mean": 0.5}), 20)
    lines = out.getvalue().splitlines()
    assert lines[0] == "00:00 warm start"
    assert lines[1] == "00:00   [not markup] 1/2"
    assert lines[2] == "00:00   step   1/20  reward +0.50"
    assert "\x1b" not in out.getvalue()


def test_evaluation_is_told_with_its_interval() -> None:
    out = io.StringIO()
    report = EvalReport(
        name="tuned",
        num_correct={},
        num_samples={},
        pass_at_1=Estimate(value=0.4625, low=0.41, high=0.52),
        pass_at_8=None,
        code_share=0.98,
        tokens=58.4,
        unjudged=0,
        truncated=0,
        seconds=61.0,
    )
    Progress(Console(file=out, highlight=False, width=200)).evaluation(report)
    assert "tuned: pass@1 46.2% (41.0% to 52.0%)  code 98%  58 tokens  61 s" in out.getvalue()
