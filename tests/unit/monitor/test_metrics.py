import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edge_rl.errors import CheckpointError, DataError
from edge_rl.monitor.metrics import Control, MetricsWriter, read_metrics, read_status, write_text_atomically
from edge_rl.types import (
    Author,
    Execution,
    ExecutionStatus,
    Group,
    Prompt,
    Reward,
    Rollout,
    ScoredGroup,
    Segment,
    StepReport,
    StopReason,
    Verdict,
)


def _report(step: int, value: float = 0.5) -> StepReport:
    return StepReport(step=step, metrics={"reward/mean": value, "seconds/rollout": 1.0})


def _scored_group() -> ScoredGroup:
    segment = Segment(author=Author.POLICY, token_ids=(5, 6), behaviour_logprobs=(-0.1, -0.2))
    rollout = Rollout(
        prompt=Prompt(sample_id="s1", token_ids=(1,)),
        group_id="g1",
        member=0,
        segments=(segment,),
        stop_reason=StopReason.STOP,
        executions=(Execution(status=ExecutionStatus.OK, stdout="42\n"),),
        text="\\boxed{42} é",
    )
    return ScoredGroup(
        group=Group(id="g1", sample_id="s1", rollouts=(rollout,), born=0),
        verdicts=(Verdict(correct=True, reason="boxed 42", route="exact_number"),),
        rewards=(Reward(total=1.0, breakdown={"correct": 1.0}),),
    )


def test_steps_come_back_as_written(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    reports = [_report(0), _report(1, 0.1 + 0.2), _report(2, -0.0)]
    for report in reports:
        writer.write_step(report)
    assert read_metrics(tmp_path) == reports


def test_numbers_that_are_not_finite_survive_as_valid_json(tmp_path: Path) -> None:
    MetricsWriter(tmp_path).write_step(StepReport(step=0, metrics={"a": math.nan, "b": math.inf, "c": -math.inf}))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    metrics = read_metrics(tmp_path)[0].metrics
    assert math.isnan(metrics["a"])
    assert (metrics["b"], metrics["c"]) == (math.inf, -math.inf)


def test_resumed_files_equal_those_of_an_uninterrupted_run(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    writer = MetricsWriter(whole)
    for step in range(4):
        writer.write_step(_report(step))
        writer.write_samples(step, [_scored_group()])
    first = MetricsWriter(resumed)
    for step in range(3):  # step 2 was not in a checkpoint yet
        first.write_step(_report(step, value=0.5 if step < 2 else 0.9))
        first.write_samples(step, [_scored_group()])
    second = MetricsWriter(resumed, first_step=2)
    assert not (resumed / "samples" / "step-2.jsonl").exists()
    for step in range(2, 4):
        second.write_step(_report(step))
        second.write_samples(step, [_scored_group()])
    for name in ("metrics.jsonl", *(f"samples/step-{step}.jsonl" for step in range(4))):
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()


def test_whole_numbers_are_written_as_they_are_read_back(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write_step(StepReport(step=0, metrics={"groups/live": 3}))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    MetricsWriter(tmp_path, first_step=1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_torn_last_line_is_left_out_and_removed_on_resume(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.write_step(_report(0))
    writer.write_event("start", "begun")
    for name in ("metrics.jsonl", "events.jsonl"):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write('{"step": 1, "rew')
    assert read_metrics(tmp_path) == [_report(0)]
    resumed = MetricsWriter(tmp_path, first_step=1)
    resumed.write_step(_report(1))
    resumed.write_event("resume", "goes on")
    assert read_metrics(tmp_path) == [_report(0), _report(1)]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["start", "resume"]


def test_metrics_can_be_cut_at_any_byte(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for step in range(3):
        writer.write_step(_report(step))
    content = (tmp_path / "metrics.jsonl").read_bytes()
    for length in range(len(content)):
        (tmp_path / "metrics.jsonl").write_bytes(content[:length])
        assert read_metrics(tmp_path) == [_report(step) for step in range(content[:length].count(b"\n"))]


def test_broken_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1.0}\n{"stop": 1}\n{"step": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: no step"):
        read_metrics(tmp_path)


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, first_step=3)
    with pytest.raises(CheckpointError, match="step 2 after 2"):
        writer.write_step(_report(2))
    writer.write_step(_report(3))
    with pytest.raises(CheckpointError, match="step 3 after 3"):
        writer.write_step(_report(3))


def test_samples_carry_completion_and_verdict(tmp_path: Path) -> None:
    MetricsWriter(tmp_path).write_samples(7, [_scored_group()])
    line = json.loads((tmp_path / "samples" / "step-7.jsonl").read_text(encoding="utf-8"))
    assert line["text"] == "\\boxed{42} é"
    assert (line["correct"], line["route"], line["reward"], line["breakdown"]) == (
        True,
        "exact_number",
        1.0,
        {"correct": 1.0},
    )
    assert (line["policy_tokens"], line["stop_reason"], line["executions"][0]["stdout"]) == (2, "stop", "42\n")


def test_status_tells_a_living_run_from_a_dead_one(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    MetricsWriter(tmp_path).write_status("reinforcement", 4)
    status = read_status(tmp_path)
    assert status is not None
    assert (status.pid, status.phase, status.step, status.is_alive) == (os.getpid(), "reinforcement", 4, True)
    # the same pid, but a process that began at another time
    assert not replace(status, started=status.started - 3600).is_alive
    (tmp_path / "status.json").write_text("{}")
    with pytest.raises(DataError, match="no heartbeat"):
        read_status(tmp_path)


def test_control_words_are_taken_once_and_pause_stays(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    control = tmp_path / "control"
    assert writer.read_control() is None
    for word in ("save", "stop"):
        control.write_text(f" {word.upper()}\n")
        assert writer.read_control() == Control(word)
        assert writer.read_control() is None
    control.write_text("pause")
    assert [writer.read_control(), writer.read_control()] == [Control.PAUSE, Control.PAUSE]
    control.write_text("explode")
    assert writer.read_control() is None
    assert not control.exists()
    assert "unknown word 'explode'" in (tmp_path / "events.jsonl").read_text()


def test_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MetricsWriter(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left on device; make room"):
        writer.write_step(_report(0))
    with pytest.raises(CheckpointError, match="No space left"):
        writer.write_status("reinforcement", 0)
    assert not (tmp_path / "status.json").exists()
    assert list(tmp_path.glob(".*.partial")) == []


def test_atomic_write_keeps_the_old_content_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_text_atomically(path, "old")
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
