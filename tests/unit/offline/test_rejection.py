"""Which completions are worth imitating."""

from typing import Any

from edge_rl.offline.rejection import example_of, select
from edge_rl.types import Execution, ExecutionStatus, Prompt, Rollout, StopReason, Verdict
from tests.builders import make_rollout, policy, tool

RIGHT, WRONG, UNJUDGED = (Verdict(correct=value, reason="by hand") for value in (True, False, None))
OK = Execution(status=ExecutionStatus.OK, stdout="5")
FAILED = Execution(status=ExecutionStatus.ERROR, stdout="", error="NameError")


def _rollout(question: str, member: int = 0, *, tokens: int = 5, text: str | None = None, **fields: Any) -> Rollout:
    given: dict[str, Any] = {
        "prompt": Prompt(sample_id=question, token_ids=(1,)),
        "group_id": question,
        "member": member,
        "segments": (policy(*range(tokens)),),
        "stop_reason": StopReason.STOP,
        "text": f"{question} {member}" if text is None else text,
    }
    return Rollout(**(given | fields))


def _select(rollouts: list[Rollout], verdicts: list[Verdict], per_question: int = 4, agrees: bool = True) -> Any:
    return select(rollouts, verdicts, per_question=per_question, agrees=lambda rollout: agrees)


def test_only_what_is_right_and_well_behaved_is_kept() -> None:
    rollouts = [
        _rollout("a", 0),
        _rollout("a", 1),
        _rollout("a", 2),
        _rollout("a", 3, stop_reason=StopReason.TOOL_LIMIT),
        _rollout("a", 4, executions=(OK, FAILED)),
        _rollout("a", 5, executions=(OK,)),
    ]
    selection = _select(rollouts, [RIGHT, WRONG, UNJUDGED, RIGHT, RIGHT, RIGHT])
    assert [rollout.member for rollout in selection.kept] == [0, 5]
    assert selection.fates == {"kept": 2, "wrong": 2, "unfinished": 1, "failed_code": 1}
    assert selection.num_questions == 1


def test_a_right_answer_that_its_code_did_not_print_was_lucky() -> None:
    rollouts = [_rollout("a", 0, executions=(OK,)), _rollout("a", 1)]
    selection = _select(rollouts, [RIGHT, RIGHT], agrees=False)
    assert [rollout.member for rollout in selection.kept] == [1]  # without code there is nothing to agree with
    assert selection.fates == {"kept": 1, "lucky": 1}


def test_twins_are_kept_once_and_the_shortest_first() -> None:
    rollouts = [
        _rollout("a", 0, tokens=9, text="long"),
        _rollout("a", 1, tokens=4, text="same  text"),
        _rollout("a", 2, tokens=5, text="same text"),
        _rollout("a", 3, tokens=7, text="middle"),
        _rollout("b", 0, tokens=8, text="same text"),
    ]
    selection = _select(rollouts, [RIGHT] * 5, per_question=2)
    kept = [(rollout.prompt.sample_id, rollout.member) for rollout in selection.kept]
    assert kept == [("a", 1), ("a", 3), ("b", 0)]
    assert selection.fates == {"kept": 3, "duplicate": 1, "surplus": 1}
    assert selection.num_questions == 2


def test_every_completion_has_one_fate() -> None:
    rollouts = [_rollout("a", member, tokens=member + 1) for member in range(7)]
    selection = _select(rollouts, [RIGHT] * 6 + [WRONG], per_question=3)
    assert sum(selection.fates.values()) == 7
    assert _select([], []).kept == ()


def test_an_example_is_the_very_tokens_without_those_of_tools_in_the_loss() -> None:
    rollout = make_rollout(policy(10, 11), tool(30), policy(12), prompt=(5, 6))
    example = example_of(rollout)
    assert example.prompt_ids == (5, 6)
    assert example.completion_ids == (10, 11, 30, 12)
    assert example.completion_mask == (True, True, False, True)
