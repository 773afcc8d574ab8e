"""What a probe counts, and what the decision table makes of it."""

from collections.abc import Sequence
from typing import Any

import pytest

from edge_rl.config import recipe_names, resolve
from edge_rl.errors import DataError, VerifierError
from edge_rl.evaluation.probe import (
    TABLE,
    Circumstances,
    Lengths,
    ProbeReport,
    advise,
    chance_of_signal,
    count_buckets,
    lengths_of,
    probe_report,
)
from edge_rl.types import Estimate, Execution, ExecutionStatus, Prompt, Rollout, StopReason, Verdict
from tests.builders import policy

RAN = Execution(status=ExecutionStatus.OK, stdout="5")


def _rollout(name: str, tokens: int = 10, runs: int = 0, stop: StopReason = StopReason.STOP) -> Rollout:
    return Rollout(
        prompt=Prompt(sample_id=name, token_ids=(1,)),
        group_id=name,
        member=0,
        segments=(policy(*range(tokens)),),
        executions=(RAN,) * runs,
        stop_reason=stop,
    )


def _verdicts(*values: bool | None) -> list[Verdict]:
    return [Verdict(correct=value, reason="by hand") for value in values]


def _report(rollouts: Sequence[Rollout], verdicts: Sequence[Verdict], k: int = 2) -> ProbeReport:
    return probe_report(rollouts, verdicts, k=k, resamples=100, seed=0)


def test_a_probe_by_hand() -> None:
    rollouts = [_rollout("a", 10, 2), _rollout("a", 20), _rollout("b", 30, 1), _rollout("b", 40), _rollout("c", 5)]
    rollouts.append(_rollout("c", 50, stop=StopReason.LENGTH))
    report = _report(rollouts, _verdicts(True, False, True, True, False, False))
    assert report.pass_at_1.value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert report.pass_at_k.value == pytest.approx(2 / 3)
    assert report.live_share == pytest.approx(1 / 3)
    assert report.success == {"a": 0.5, "b": 1.0, "c": 0.0}
    assert report.buckets == {"0": 1, "1-10": 0, "10-50": 1, "50-90": 0, ">90": 1}
    assert report.code_share == pytest.approx(2 / 6)
    assert report.tool_calls == pytest.approx(1.5)
    assert report.lengths == Lengths(median=20, p95=50, longest=50, truncated=1 / 6)


def test_what_could_not_be_judged_is_in_no_rate() -> None:
    rollouts = [_rollout(name) for name in "aabb"]
    report = _report(rollouts, _verdicts(True, None, True, False))
    assert report.unjudged == 1
    assert report.success == {"a": 1.0, "b": 0.5}
    # of a there is one judged completion only: no pass@2 and no chance of a signal
    assert report.pass_at_k.value == 1.0
    assert report.live_share == 1.0


def test_a_probe_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="at least 2 completions"):
        _report([], [])
    with pytest.raises(DataError, match="k = 1"):
        _report([_rollout("a")], _verdicts(True), k=1)
    with pytest.raises(VerifierError, match="by hand"):
        _report([_rollout("a"), _rollout("a")], _verdicts(None, True))


@pytest.mark.parametrize(
    ("correct", "samples", "k", "chance"),
    [
        (0, 8, 8, 0.0),
        (8, 8, 8, 0.0),
        (1, 8, 8, 1.0),
        (4, 8, 2, 1 - 2 * 6 / 28),  # C(4, 2) = 6 of C(8, 2) = 28 ways are all right, as many all wrong
        (1, 4, 2, 1 - 3 / 6),
        (2, 2, 1, 0.0),
    ],
)
def test_the_chance_of_a_signal_counts_ways_to_draw(correct: int, samples: int, k: int, chance: float) -> None:
    assert chance_of_signal(correct, samples, k) == pytest.approx(chance)


def test_the_chance_of_a_signal_needs_enough_samples() -> None:
    with pytest.raises(ValueError, match="at most 4"):
        chance_of_signal(1, 4, 8)


def test_a_rate_at_the_end_of_a_bucket_belongs_to_it() -> None:
    assert count_buckets([0.0, 0.01, 0.1, 0.11, 0.5, 0.51, 0.9, 0.91, 1.0]) == {
        "0": 1,
        "1-10": 2,
        "10-50": 2,
        "50-90": 2,
        ">90": 2,
    }


def test_a_percentile_is_a_length_that_so_many_do_not_exceed() -> None:
    lengths = lengths_of([_rollout("a", tokens) for tokens in range(1, 101)])
    assert (lengths.median, lengths.p95, lengths.longest) == (50, 95, 100)
    assert lengths_of([_rollout("a", 7)]) == Lengths(median=7, p95=7, longest=7, truncated=0.0)


# -- advice ----------------------------------------------------------------------------------------------------------


def _probe(at_1: float, at_k: float, **changed: Any) -> ProbeReport:
    usual: dict[str, Any] = {
        "k": 8,
        "pass_at_1": Estimate(value=at_1, low=at_1, high=at_1),
        "pass_at_k": Estimate(value=at_k, low=at_k, high=at_k),
        "buckets": {},
        "success": {},
        "live_share": 0.6,
        "lengths": Lengths(median=60, p95=120, longest=128, truncated=0.02),
        "code_share": 0.8,
        "tool_calls": 1.0,
        "unjudged": 0,
        "num_completions": 64,
    }
    return ProbeReport(**(usual | changed))


def _here(**changed: Any) -> Circumstances:
    usual: dict[str, Any] = {"num_traces": 30, "has_tools": True, "max_tokens": 128, "recipes": recipe_names()}
    return Circumstances(**(usual | changed))


LOOSE = Lengths(median=20, p95=128, longest=128, truncated=0.3)


@pytest.mark.parametrize(
    ("row", "probe", "here", "recipe", "worth_it"),
    [
        (0, _probe(0.0, 0.02), _here(num_traces=9), "default", False),
        (1, _probe(0.0, 0.02), _here(), "default", True),
        (2, _probe(0.95, 1.0), _here(), "dler", False),
        (3, _probe(0.3, 0.6, tool_calls=2.4), _here(), "gtpo", True),
        (4, _probe(0.3, 0.6, code_share=0.02), _here(), "default", True),
        (5, _probe(0.3, 0.6, lengths=LOOSE), _here(), "dler", True),
        (6, _probe(0.3, 0.6), _here(), "grpo", True),
        (6, _probe(0.3, 0.6, code_share=0.02), _here(has_tools=False), "grpo", True),
        (6, _probe(0.3, 0.6, code_share=0.02), _here(num_traces=9), "grpo", True),
        (6, _probe(0.3, 0.6, tool_calls=2.4), _here(has_tools=False), "grpo", True),
    ],
)
def test_the_first_row_that_holds_decides(
    row: int, probe: ProbeReport, here: Circumstances, recipe: str, worth_it: bool
) -> None:
    advice = advise(probe, here)
    assert (advice.recipe, advice.worth_it) == (recipe, worth_it)
    first_words = TABLE[row][3].split("{")[0]
    assert advice.reasons[0].startswith(first_words)
    assert "{" not in " ".join(advice.reasons)


def test_every_recipe_of_the_table_exists() -> None:
    assert {row[1] for row in TABLE} <= set(recipe_names())


@pytest.mark.parametrize(
    ("probe", "here", "settings"),
    [
        (_probe(0.3, 0.6), _here(num_traces=3), {"warm_start.kind": "none"}),
        (_probe(0.3, 0.6), _here(), {"warm_start.kind": "none"}),  # solves enough without one
        (_probe(0.1, 0.3), _here(), {}),
        (
            _probe(0.1, 0.3, lengths=Lengths(median=20, p95=41, longest=90, truncated=0.0)),
            _here(),
            {"rollout.max_tokens": 48, "rollout.chunk_tokens": 48},
        ),
        (
            _probe(0.1, 0.3, lengths=Lengths(median=90, p95=128, longest=128, truncated=0.2)),
            _here(),
            {"rollout.max_tokens": 256, "rollout.chunk_tokens": 256},
        ),
        (_probe(0.0, 0.02, live_share=0.1), _here(), {"rollout.max_resample_rounds": 3}),
    ],
)
def test_settings_follow_from_the_numbers(probe: ProbeReport, here: Circumstances, settings: dict[str, Any]) -> None:
    advice = advise(probe, here)
    assert advice.settings == settings
    resolve(advice.recipe, dict(advice.settings))  # the run that it names can be made
