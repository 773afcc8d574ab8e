"""A checkpoint exists whole or not at all, and comes back as it was."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from edge_rl.errors import CheckpointError
from edge_rl.types import Execution, ExecutionStatus, Group, Prompt, Rollout, Segment, StopReason
from edge_rl.weights import checkpoints
from edge_rl.weights.checkpoints import (
    latest_checkpoint,
    load_checkpoint,
    remove_old_checkpoints,
    save_checkpoint,
)
from tests.builders import hint, make_group, make_rollout, policy, tool
from tests.builders_models import randomise_adapter
from tests.builders_policies import Policy, make_policy, trainable

STATE = {"sampler": {"epoch": 2, "pending": ["a", "b"]}, "validation": [[0, 0.25]], "seconds": {"reinforce": 1.5}}


@pytest.fixture
def tiny(tmp_path: Path) -> Policy:
    return make_policy(tmp_path, packed=False)


def _learner_state() -> dict[str, Any]:
    return {"optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(4)}}}, "num_steps_taken": 3}


def _carried() -> list[Group]:
    finished = make_rollout(
        policy(1, 2, logprobs=(-0.1234567890123456, -1e-12), version=3),
        tool(30, 31),
        policy(4, logprobs=(-7.25,), version=4),
        prompt=(5, 6),
        member=0,
        stop_reason=StopReason.LENGTH,
        executions=(
            Execution(status=ExecutionStatus.ERROR, stdout="é\u2028\n", error="ValueError: \ud7ff 'x'", seconds=0.125),
        ),
        text="text \\boxed{4}",
        policy_text="text",
    )
    unfinished = make_rollout(hint(9), policy(1, version=4), prompt=(5, 6), member=1, stop_reason=None)
    untouched = make_rollout(prompt=(5, 6), member=2, stop_reason=None)
    return [make_group([finished, unfinished, untouched], group_id="3-0-s", born=3), make_group([], group_id="x")]


def _save(tiny: Policy, run_dir: Path, step: int, carried: list[Group] | None = None) -> Path:
    return save_checkpoint(run_dir, tiny.model, step=step, learner=_learner_state(), state=STATE, carried=carried or [])


def test_a_checkpoint_comes_back_as_it_was(tiny: Policy, tmp_path: Path) -> None:
    learner, carried, weights = _learner_state(), _carried(), trainable(tiny.model)
    folder = save_checkpoint(tmp_path / "run", tiny.model, step=12, learner=learner, state=STATE, carried=carried)
    assert folder == tmp_path / "run" / "checkpoints" / "step-12"
    randomise_adapter(tiny.model, std=1.0, seed=9)
    checkpoint = load_checkpoint(folder, tiny.model)
    assert checkpoint.step == 12
    assert checkpoint.folder == folder
    assert {key: checkpoint.state[key] for key in STATE} == STATE
    assert checkpoint.carried == carried
    assert checkpoint.learner["num_steps_taken"] == 3
    moments = checkpoint.learner["optimizer"]["state"][0]
    assert torch.equal(moments["exp_avg"], learner["optimizer"]["state"][0]["exp_avg"])
    for name, weight in trainable(tiny.model).items():
        assert torch.equal(weight, weights[name]), name


def test_carried_rollouts_keep_every_field(tiny: Policy, tmp_path: Path) -> None:
    """Equality of records is not enough: types must come back too, or the next step trips over them."""
    checkpoint = load_checkpoint(_save(tiny, tmp_path / "run", 1, _carried()), tiny.model)
    rollout = checkpoint.carried[0].rollouts[0]
    assert isinstance(rollout, Rollout) and isinstance(rollout.prompt, Prompt)
    assert all(isinstance(segment, Segment) for segment in rollout.segments)
    assert rollout.stop_reason is StopReason.LENGTH
    assert rollout.loss_mask == (True, True, False, False, True)
    assert rollout.policy_versions == (3, 3, 0, 0, 4)
    assert rollout.behaviour_logprobs == (-0.1234567890123456, -1e-12, 0.0, 0.0, -7.25)
    assert rollout.executions[0].status is ExecutionStatus.ERROR
    assert checkpoint.carried[0].rollouts[1].stop_reason is None


def test_latest_checkpoint_is_the_greatest_step(tiny: Policy, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert latest_checkpoint(run_dir) is None
    for step in (2, 10, 9):
        _save(tiny, run_dir, step)
    (run_dir / "checkpoints" / "step-later").mkdir()
    (run_dir / "checkpoints" / ".step-99.partial").mkdir()
    assert latest_checkpoint(run_dir) == run_dir / "checkpoints" / "step-10"


def test_old_checkpoints_and_remains_of_a_crash_are_removed(tiny: Policy, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for step in (1, 2, 10):
        _save(tiny, run_dir, step)
    (run_dir / "checkpoints" / ".step-abc.partial").mkdir()
    (run_dir / "checkpoints" / ".step-10-old-abc").mkdir()
    remove_old_checkpoints(run_dir, keep=2)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["step-10", "step-2"]


def _leave(*_: Any, **__: Any) -> None:
    """Stands for a clean-up that does not happen."""


class _Killed(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


def _save_until_killed(tiny: Policy, run_dir: Path, step: int, *, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before the rename ("before") or between the two renames that replace a folder ("between")."""
    rename = Path.rename

    def die(source: Path, target: Path) -> Path:
        if source.name.endswith(".partial"):
            raise _Killed
        return rename(source, target)

    def die_at_once(*_: object) -> None:
        raise _Killed

    with monkeypatch.context() as context, pytest.raises(_Killed):
        if at == "between":
            context.setattr(Path, "rename", die)
        else:
            context.setattr(checkpoints, "replace_folder", die_at_once)
        # a killed process cleans nothing up
        context.setattr(shutil, "rmtree", _leave)
        _save(tiny, run_dir, step)


@pytest.mark.parametrize(("step", "at"), [(5, "before"), (5, "between"), (4, "before")])
def test_a_kill_between_write_and_rename_leaves_the_old_checkpoint(
    tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, at: str
) -> None:
    run_dir = tmp_path / "run"
    folder = _save(tiny, run_dir, 4, _carried())
    weights = trainable(tiny.model)
    randomise_adapter(tiny.model, std=1.0, seed=9)
    _save_until_killed(tiny, run_dir, step, at=at, monkeypatch=monkeypatch)
    assert latest_checkpoint(run_dir) == folder
    checkpoint = load_checkpoint(folder, tiny.model)
    assert checkpoint.step == 4 and checkpoint.carried == _carried()
    for name, weight in trainable(tiny.model).items():
        assert torch.equal(weight, weights[name]), name
    _save(tiny, run_dir, step)
    remove_old_checkpoints(run_dir, keep=5)
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == sorted({"step-4", f"step-{step}"})


def test_a_kill_while_a_step_is_replaced_leaves_both_versions_on_the_disk(
    tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    _save(tiny, run_dir, 3)
    _save(tiny, run_dir, 4)
    _save_until_killed(tiny, run_dir, 4, at="between", monkeypatch=monkeypatch)
    assert latest_checkpoint(run_dir) == run_dir / "checkpoints" / "step-3"
    assert len([*(run_dir / "checkpoints").glob(".step-4-old-*/content/state.json")]) == 1
    assert len([*(run_dir / "checkpoints").glob(".step-*.partial/state.json")]) == 1


def test_saving_a_step_again_replaces_it(tiny: Policy, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    _save(tiny, run_dir, 4)
    folder = _save(tiny, run_dir, 4, _carried())
    assert load_checkpoint(folder, tiny.model).carried == _carried()
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-4"]


def test_a_full_disk_is_a_checkpoint_error_and_keeps_the_old_one(
    tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    folder = _save(tiny, run_dir, 4)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(checkpoints.torch, "save", full)
        with pytest.raises(CheckpointError, match=r"step-5: .*No space left.*; make room, then run the same command"):
            _save(tiny, run_dir, 5)
    assert latest_checkpoint(run_dir) == folder
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-4"]


def _not_json(path: Path) -> None:
    path.write_text("{", encoding="utf-8")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff\xfegarbage" * 20)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _delete(path: Path) -> None:
    path.unlink()


def _other_json(path: Path) -> None:
    path.write_text(json.dumps(["a"]), encoding="utf-8")


@pytest.mark.parametrize("damage", [_truncate, _garbage, _empty, _delete])
@pytest.mark.parametrize(
    "name",
    ["learner.pt", "state.json", "carried.json", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"],
)
def test_a_damaged_file_is_a_checkpoint_error_that_says_what_to_do(
    tiny: Policy, tmp_path: Path, name: str, damage: Any
) -> None:
    folder = _save(tiny, tmp_path / "run", 4, _carried())
    damage(folder / name)
    with pytest.raises(
        CheckpointError, match=r"cannot read .*; (delete it to resume from the one before|use an older)"
    ):
        load_checkpoint(folder, tiny.model)


@pytest.mark.parametrize("name", ["state.json", "carried.json"])
@pytest.mark.parametrize("damage", [_not_json, _other_json])
def test_json_of_another_shape_is_a_checkpoint_error(tiny: Policy, tmp_path: Path, name: str, damage: Any) -> None:
    folder = _save(tiny, tmp_path / "run", 4)
    damage(folder / name)
    with pytest.raises(CheckpointError, match="delete it to resume from the one before"):
        load_checkpoint(folder, tiny.model)


def test_code_in_a_checkpoint_is_not_run(tiny: Policy, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    folder = _save(tiny, tmp_path / "run", 4)
    torch.save({"optimizer": Evil()}, folder / "learner.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(folder, tiny.model)
    assert not (tmp_path / "touched").exists()


def test_a_checkpoint_of_another_base_is_refused(tiny: Policy, tmp_path: Path) -> None:
    folder = _save(tiny, tmp_path / "run", 4)
    other = make_policy(tmp_path / "other", family="qwen2")
    with pytest.raises(CheckpointError, match="base"):
        load_checkpoint(folder, other.model)
