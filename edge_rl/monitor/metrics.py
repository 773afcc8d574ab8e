"""The files through which a run can be watched and steered: metrics, events, completions, heartbeat, control.

    metrics.jsonl          one line a step: {"step": 3, "reward/mean": 0.41, ...}
    events.jsonl           one line for each thing that happened: {"time": ..., "kind": "checkpoint", "message": ...}
    samples/step-N.jsonl   one line a rollout of step N: the completion with its verdict and reward
    status.json            heartbeat: pid, phase, step, time
    control                a person writes one word into it: pause, stop or save

Knows the run folder and the records; no model, no console, no plot. A line that was confirmed is on the disk.
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from edge_rl.errors import CheckpointError, DataError
from edge_rl.types import Reward, Rollout, ScoredGroup, StepReport, Verdict

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
STATUS_FILE = "status.json"
CONTROL_FILE = "control"
SAMPLES_FOLDER = "samples"


class Control(StrEnum):
    """A word that a person writes into the control file."""

    PAUSE = "pause"
    """Wait before the next step while the file says so; deleting it goes on."""
    STOP = "stop"
    """Save and exit."""
    SAVE = "save"
    """Save and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The heartbeat of a run."""

    pid: int
    started: float
    """Unix time at which that process started; tells it from a later process with the same pid."""
    phase: str
    step: int
    time: float
    """Unix time of the heartbeat."""

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote it still runs."""
        try:
            process = psutil.Process(self.pid)
            return process.is_running() and abs(process.create_time() - self.started) < 2.0
        except psutil.Error:
            return False


class MetricsWriter:
    """Writes what a run says about itself. One writer a run folder.

    Opening it with the first step that will be run drops every later line, so the files of a resumed run equal those of
    an uninterrupted one. Raises: CheckpointError where the disk is full or the folder cannot be written.
    """

    def __init__(self, run_dir: Path, *, first_step: int = 0) -> None:
        self.run_dir = run_dir
        self._started = psutil.Process().create_time()
        with _writing(run_dir):
            (run_dir / SAMPLES_FOLDER).mkdir(parents=True, exist_ok=True)
            kept = [report for report in read_metrics(run_dir) if report.step < first_step]
            write_text_atomically(run_dir / METRICS_FILE, "".join(_metrics_line(report) for report in kept))
            for path in (run_dir / SAMPLES_FOLDER).glob("step-*.jsonl"):
                number = path.stem.removeprefix("step-")
                if number.isdecimal() and int(number) >= first_step:
                    path.unlink()
            _end_torn_line(run_dir / EVENTS_FILE)
        self._next_step = first_step

    def write_step(self, report: StepReport) -> None:
        """Add the line of one step; steps come in order and once."""
        if report.step < self._next_step:
            raise CheckpointError(
                f"{self.run_dir / METRICS_FILE}: step {report.step} after {self._next_step - 1}; steps come in order"
            )
        _append(self.run_dir / METRICS_FILE, _metrics_line(report))
        self._next_step = report.step + 1

    def write_event(self, kind: str, message: str, **facts: str | float | None) -> None:
        """Note something that happened, with the time and named facts."""
        line = {"time": round(time.time(), 3), "kind": kind, "message": message, **_encode(facts)}
        _append(self.run_dir / EVENTS_FILE, json.dumps(line, ensure_ascii=False) + "\n")

    def write_samples(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Write the completions of one step with their verdicts, a line each."""
        lines = [
            json.dumps(_sample_line(rollout, verdict, reward), ensure_ascii=False) + "\n"
            for group in groups
            for rollout, verdict, reward in zip(group.group.rollouts, group.verdicts, group.rewards, strict=True)
        ]
        path = self.run_dir / SAMPLES_FOLDER / f"step-{step}.jsonl"
        with _writing(path):
            write_text_atomically(path, "".join(lines))

    def write_status(self, phase: str, step: int) -> None:
        """Renew the heartbeat."""
        status = RunStatus(pid=os.getpid(), started=self._started, phase=phase, step=step, time=time.time())
        path = self.run_dir / STATUS_FILE
        with _writing(path):
            write_text_atomically(path, json.dumps(asdict(status)) + "\n")

    def read_control(self) -> Control | None:
        """Return what a person asks for; `stop` and `save` are asked for once, `pause` stays until it is deleted."""
        path = self.run_dir / CONTROL_FILE
        try:
            word = path.read_text(encoding="utf-8", errors="replace").strip().lower()
        except FileNotFoundError:
            return None
        if word == Control.PAUSE:
            return Control.PAUSE
        path.unlink(missing_ok=True)
        if word in tuple(Control):
            return Control(word)
        self.write_event("control", f"unknown word {word[:40]!r} in {CONTROL_FILE}; known: {', '.join(Control)}")
        return None


def read_metrics(run_dir: Path) -> list[StepReport]:
    """Return the steps of a run in order; a last line that a crash cut short is left out.

    Raises: DataError, with file and line, where another line is no step.
    """
    path = run_dir / METRICS_FILE
    if not path.exists():
        return []
    *whole, _torn = path.read_bytes().split(b"\n")
    reports: list[StepReport] = []
    for number, line in enumerate(whole, start=1):
        try:
            values: dict[str, Any] = json.loads(line)
            step = int(values.pop("step"))
            # float() also reads the strings that stand for non-finite numbers.
            reports.append(StepReport(step=step, metrics={name: float(value) for name, value in values.items()}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}:{number}: no step of a run ({error}); delete the line to go on without it"
            ) from None
    return reports


def read_status(run_dir: Path) -> RunStatus | None:
    """Return the heartbeat of a run; None before its first.

    Raises: DataError if the file is no heartbeat.
    """
    path = run_dir / STATUS_FILE
    try:
        return RunStatus(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: no heartbeat of a run ({error}); delete it") from None


def write_text_atomically(path: Path, text: str) -> None:
    """Write a whole file: a reader and a crash see the old content or the new one, never a part."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _append(path: Path, line: str) -> None:
    with _writing(path), path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _end_torn_line(path: Path) -> None:
    """Cut what a crash left after the last line end, so that the next line does not join it."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))


@contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}; make room or permit it, then run the same command again"
        ) from error


def _encode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with non-finite numbers as strings, because JSON has no word for them."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _metrics_line(report: StepReport) -> str:
    metrics = {name: float(value) for name, value in report.metrics.items()}  # as they are read back on a resume
    return json.dumps({"step": report.step, **_encode(metrics)}) + "\n"


def _sample_line(rollout: Rollout, verdict: Verdict, reward: Reward) -> dict[str, Any]:
    return {
        "sample_id": rollout.prompt.sample_id,
        "group_id": rollout.group_id,
        "member": rollout.member,
        "hint_level": rollout.prompt.hint_level,
        "text": rollout.text,
        "stop_reason": rollout.stop_reason,
        "policy_tokens": rollout.num_policy_tokens,
        "executions": [
            {"status": execution.status, "stdout": execution.stdout, "error": execution.error}
            for execution in rollout.executions
        ],
        "correct": verdict.correct,
        "reason": verdict.reason,
        "route": verdict.route,
        "reward": reward.total,
        "breakdown": dict(reward.breakdown),
        "signals": dict(reward.signals),
    }
