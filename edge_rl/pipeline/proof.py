"""From a configuration to a report: train, measure, export, check the export, and write what was found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_rl.config import Config
from edge_rl.evaluation.evaluator import paired
from edge_rl.monitor.progress import Progress
from edge_rl.monitor.report import peak_rss_mb, print_report, report_row, write_report
from edge_rl.pipeline.assembly import assemble
from edge_rl.pipeline.run_folder import open_run_folder
from edge_rl.pipeline.training import Stopped, Training
from edge_rl.types import EvalReport


def train_and_prove(config: Config, *, on_interrupt: Callable[[Training], None]) -> Path:
    """Run a configuration from where it stands to its report; return the run's folder.

    `on_interrupt` may install a handler that sets `training.stop_requested`.
    Raises: KeyboardInterrupt when stopped; the run is saved then and the same command goes on.
    """
    run_dir, lock = open_run_folder(config)
    progress = Progress()
    with lock:
        progress.phase(f"run {run_dir}")
        training = Training(assemble(config), run_dir, progress)
        on_interrupt(training)
        try:
            training.warm_start()
            training.reinforce()
            reports = training.measure()
        except Stopped:
            progress.note(f"stopped and saved in {run_dir}; the same command goes on")
            raise KeyboardInterrupt from None
        _report(config, run_dir, training, reports)
    return run_dir


def _report(config: Config, run_dir: Path, training: Training, reports: dict[str, EvalReport]) -> None:
    """Write and print the report."""
    training.clock.lap("export")
    seconds = training.clock.seconds
    differences = {
        f"tuned_vs_{name.replace(' ', '_')}": paired(reports["tuned"], report, resamples=config.evaluation.bootstrap)
        for name, report in reports.items()
        if name in ("base", "warm start")
    }
    minutes = {
        "warm start": seconds.get("warm_start", 0.0) / 60,
        "tuned": (seconds.get("warm_start", 0.0) + seconds.get("reinforce", 0.0) + seconds.get("validate", 0.0)) / 60,
    }
    rows = [report_row(report, minutes=minutes.get(name)) for name, report in reports.items()]
    extras: dict[str, Any] = {
        "seed": config.run.seed,
        "model": config.model.name,
        "recipe": config.recipe,
        "seconds": seconds,
        "validation": training.validation,
        "files": {"adapter": str(training.best_adapter)},
    }
    total = sum(seconds.values()) / 60
    write_report(run_dir, rows, differences, total, peak_rss_mb(), extras)
    print_report(run_dir, rows, differences)
    training.writer.write_status("done", config.learning.num_steps)
