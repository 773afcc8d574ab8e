"""From a configuration to a report: train, measure, export, check the export, and write what was found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_rl.config import Config
from edge_rl.errors import ConfigError
from edge_rl.evaluation.evaluator import load_report, paired, paired_at_8, save_report
from edge_rl.monitor.progress import Progress
from edge_rl.monitor.report import peak_rss_mb, print_report, report_row, shown_differences, write_report
from edge_rl.pipeline.assembly import Parts, assemble
from edge_rl.pipeline.exporting import check_toolchain, export_run, gguf_file
from edge_rl.pipeline.measuring import measure_gguf
from edge_rl.pipeline.run_folder import guard_disk, open_run_folder
from edge_rl.pipeline.training import Stopped, Training
from edge_rl.types import EvalReport

STAGES = {
    "warm start": ("warm_start",),
    "rejection": ("rejection",),
    "preference": ("preference",),
    "tuned": ("reinforce", "validate"),
}
"""Checkpoint -> phases that lead to it from the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled:
    """Where rollouts go to or come from, if not straight from the engine into the update."""

    write_to: Path | None = None
    """Collect into this folder and stop: nothing is trained or measured."""
    num_groups: int = 0
    """How many groups to write; 0 = as many as can be trained on within rollout.max_queue_age."""
    read_from: Path | None = None
    """Train on groups of this folder; nothing is collected."""

    def __post_init__(self) -> None:
        if self.write_to is not None and self.read_from is not None:
            raise ConfigError("--rollouts-to and --rollouts-from exclude each other; write first, then train")


def train_and_prove(
    config: Config, *, on_interrupt: Callable[[Training], None], decoupled: Decoupled | None = None
) -> Path:
    """Run a configuration from where it stands to its report; return the run's folder.

    `on_interrupt` may install a handler that sets `training.stop_requested`.
    Raises: KeyboardInterrupt when stopped; the run is saved then and the same command goes on.
    """
    check_toolchain(config)
    decoupled = decoupled or Decoupled()
    progress = Progress()
    with open_run_folder(config) as run_dir, guard_disk(run_dir):
        progress.phase(f"run {run_dir}")
        parts = assemble(config)
        with parts.interpreter:
            training = Training(parts, run_dir, progress, rollouts_from=decoupled.read_from)
            on_interrupt(training)
            try:
                training.warm_start()
                training.imitate()
                training.prefer()
                if decoupled.write_to is not None:
                    settings = config.rollout
                    usual = settings.prompts_per_step * (settings.max_queue_age + 1)
                    training.fill(decoupled.write_to, decoupled.num_groups or usual)
                    return run_dir
                training.reinforce()
                reports = training.measure()
                reports |= _export(parts, run_dir, training, progress)
            except Stopped:
                progress.note(f"stopped and saved in {run_dir}; the same command goes on")
                raise KeyboardInterrupt from None
        _report(config, run_dir, training, reports)
    return run_dir


def _export(parts: Parts, run_dir: Path, training: Training, progress: Progress) -> dict[str, EvalReport]:
    """Export the best adapter, unless that is done; return the test report of the GGUF in llama.cpp."""
    settings = parts.config.export
    if not settings.formats:
        return {}
    if not (run_dir / "export" / "export.json").exists():
        training.begin(f"export: merge and {', '.join(settings.formats)}")
        export_run(run_dir, parts.config)
        training.clock.lap("export")
    name = f"GGUF {settings.check_format}"
    path = run_dir / "eval" / f"{name.replace(' ', '_')}.json"
    if not path.exists():
        training.begin(f"test: {name} in llama.cpp")
        samples = parts.samples.test[: settings.check_questions]
        file = gguf_file(run_dir, settings.check_format)
        report = measure_gguf(parts, file, name, samples, settings.check_samples)
        save_report(report, path)
        progress.evaluation(report)
        training.clock.lap("measure")
    return {name: load_report(path)}


def _minutes_until(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the minutes that making each checkpoint took, its measurement not included."""
    minutes: dict[str, float] = {}
    total = 0.0
    for name, phases in STAGES.items():
        total += sum(seconds.get(phase, 0.0) for phase in phases) / 60
        minutes[name] = total
    return minutes


def _report(config: Config, run_dir: Path, training: Training, reports: dict[str, EvalReport]) -> None:
    """Write and print the report."""
    seconds = training.clock.seconds
    differences = {
        f"tuned_vs_{name.replace(' ', '_')}": paired(reports["tuned"], report, resamples=config.evaluation.bootstrap)
        for name, report in reports.items()
        if name in ("base", "warm start", "rejection", "preference")
    }
    minutes = _minutes_until(seconds)
    rows = [report_row(report, minutes=minutes.get(name)) for name, report in reports.items()]
    at_8 = {
        name: {"diff": estimate.value, "low": estimate.low, "high": estimate.high, "questions": count}
        for name, other in (("tuned_vs_base", "base"), ("tuned_vs_warm_start", "warm start"))
        if other in reports and (found := paired_at_8(reports["tuned"], reports[other])) is not None
        for estimate, count in [found]
    }
    extras: dict[str, Any] = {
        "paired_at_8": at_8,
        "seed": config.run.seed,
        "model": config.model.name,
        "recipe": config.recipe,
        "think": config.data.think,
        "seconds": seconds,
        "validation": training.validation,
        "ended_by": training.ended_by,
        "files": {"adapter": str(training.best_adapter), "export": str(run_dir / "export")},
    }
    total = sum(seconds.values()) / 60
    write_report(run_dir, rows, differences, total, peak_rss_mb(), extras)
    print_report(run_dir, rows, shown_differences(differences, extras))
    training.writer.write_status("done", config.learning.num_steps)
