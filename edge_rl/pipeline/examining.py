"""Gather what a run folder says about itself, for the doctor. Reads files only; loads no model."""

from dataclasses import replace
from pathlib import Path

from edge_rl.data.seeds import load_samples
from edge_rl.errors import DataError
from edge_rl.evaluation.evaluator import load_report, paired, paired_at_8
from edge_rl.monitor.doctor import Facts
from edge_rl.monitor.guards import Validation
from edge_rl.monitor.metrics import read_metrics, read_status
from edge_rl.pipeline.run_folder import read_config
from edge_rl.pipeline.validating import validation_of
from edge_rl.types import Estimate, EvalReport, Split


def gather(run_dir: Path) -> Facts:
    """Return the facts of a run.

    Raises: DataError if the folder is no run or a file in it is damaged.
    """
    config = read_config(run_dir)
    status = read_status(run_dir)
    train = _train_samples(Path(config.data.path))
    tests = _tests(run_dir)
    return Facts(
        config=config,
        steps=read_metrics(run_dir),
        validations=_validations(run_dir),
        tests=tests,
        differences=_differences(tests, config.evaluation.bootstrap),
        num_train=len(train),
        has_tools=any(tools for tools in train),
        phase=status.phase if status is not None else "",
        is_alive=status is not None and status.is_alive,
    )


def _train_samples(path: Path) -> list[tuple[str, ...]]:
    """Return the tools of each training sample; none where the file is not there any more."""
    if not path.exists():
        return []
    return [sample.tools for sample in load_samples(path) if sample.split is Split.TRAIN]


def _validations(run_dir: Path) -> list[Validation]:
    found: list[Validation] = []
    for path in (run_dir / "eval").glob("validation-*.json"):
        number = path.stem.removeprefix("validation-")
        if number.isdecimal():
            found.append(validation_of(int(number), load_report(path)))
    return sorted(found, key=lambda item: item.step)


def _tests(run_dir: Path) -> dict[str, EvalReport]:
    """Return the measurements that the run itself made, by name."""
    wanted = [run_dir / "eval" / f"{name}.json" for name in ("base", "warm_start", "rejection", "preference", "tuned")]
    paths = [path for path in wanted if path.exists()] + sorted((run_dir / "eval").glob("GGUF_*.json"))
    reports = [load_report(path) for path in paths]
    return {report.name: report for report in reports}


def _differences(tests: dict[str, EvalReport], resamples: int) -> dict[str, Estimate]:
    tuned = tests.get("tuned")
    if tuned is None:
        return {}
    found = {
        f"tuned_vs_{name.replace(' ', '_')}": paired(tuned, tests[name], resamples=resamples)
        for name in ("base", "warm start", "rejection", "preference")
        if name in tests
    }
    for name in ("base", "warm start"):
        at_8 = paired_at_8(tuned, tests[name], resamples=resamples) if name in tests else None
        if at_8 is not None:
            found[f"at_8_tuned_vs_{name.replace(' ', '_')}"] = at_8[0]
    for name, report in tests.items():
        if name.startswith("GGUF"):
            found["gguf_vs_tuned"] = paired(report, _only(tuned, report), resamples=resamples)
    return found


def _only(report: EvalReport, other: EvalReport) -> EvalReport:
    """Return a report cut down to the questions of another."""
    missing = other.num_samples.keys() - report.num_samples.keys()
    if missing:
        raise DataError(f"evaluation {other.name!r} has questions that {report.name!r} lacks: {min(missing)}, ...")
    return replace(
        report,
        num_correct={name: report.num_correct[name] for name in other.num_samples},
        num_samples={name: report.num_samples[name] for name in other.num_samples},
    )
