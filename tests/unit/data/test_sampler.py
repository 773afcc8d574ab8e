import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_rl.data.sampler import Sampler, interleave
from edge_rl.errors import ConfigError, DataError

IDS = [f"s{index}" for index in range(10)]


@given(num=st.integers(1, 23), n=st.integers(1, 30), seed=st.integers(0, 5), calls=st.integers(1, 12))
def test_sampler_visits_every_sample_once_per_epoch(num: int, n: int, seed: int, calls: int) -> None:
    ids = [f"s{index}" for index in range(num)]
    sampler = Sampler(ids, seed)
    batches = [sampler.next(n) for _ in range(calls)]
    visits = Counter(name for batch in batches for name in batch)
    # After k ids in total, each sample was seen floor(k / num) times, or once more.
    whole = n * calls // num
    assert sum(visits.values()) == n * calls
    assert all(visits[name] in (whole, whole + 1) for name in ids)
    if n <= num:
        assert all(len(set(batch)) == n for batch in batches)


def test_sampler_wraps_inside_a_call_without_repeating_an_id() -> None:
    sampler = Sampler(["a", "b", "c"], seed=1)
    first, second, third = sampler.next(2), sampler.next(2), sampler.next(2)
    assert len(set(first)) == len(set(second)) == len(set(third)) == 2
    assert sorted(first + second + third) == ["a", "a", "b", "b", "c", "c"]
    assert sampler.epoch == 2


def test_sampler_order_depends_on_seed_and_epoch_only() -> None:
    assert Sampler(IDS, seed=3).next(10) == Sampler(IDS, seed=3).next(10)
    assert Sampler(IDS, seed=3).next(10) != Sampler(IDS, seed=4).next(10)
    sampler = Sampler(IDS, seed=3)
    assert sampler.next(10) != sampler.next(10)


def test_sampler_parks_solved_samples_for_two_epochs() -> None:
    sampler = Sampler(IDS, seed=0)
    sampler.next(10)
    sampler.record("s0", 1.0)
    assert not sampler.parked  # one visit settles nothing
    sampler.next(10)
    sampler.record("s0", 1.0)
    assert sampler.parked == {"s0": 5}  # parked in epoch 2, sits out 3 and 4, back in 5
    assert "s0" not in sampler.next(9)
    assert "s0" not in sampler.next(9)
    assert "s0" in sampler.next(10)
    assert not sampler.parked


def test_sampler_parks_dead_samples_and_frees_them_when_they_come_alive() -> None:
    sampler = Sampler(IDS, seed=0, park_epochs=1)
    for _ in range(2):
        sampler.next(10)
        sampler.record("s4", 0.0)
    assert sampler.parked == {"s4": 4}
    sampler.record("s4", 0.5)  # a carried group of it ends late
    assert sampler.success["s4"] == pytest.approx(0.25, abs=1e-9)  # 0.5 * 0 + 0.5 * 0.5
    assert not sampler.parked
    for _ in range(6):
        sampler.record("s4", 0.0)
    assert sampler.parked == {"s4": 4}  # 0.25 / 2**6 < 0.02
    assert "s4" not in sampler.next(9)
    assert "s4" in sampler.next(10)
    assert not sampler.parked


def test_sampler_success_is_a_running_mean_and_its_bounds_are_strict() -> None:
    sampler = Sampler(IDS, seed=0)
    sampler.next(10)
    sampler.record("s1", 0.9)
    sampler.record("s1", 1.0)
    assert sampler.success["s1"] == pytest.approx(0.95, abs=1e-9)  # 0.5 * 0.9 + 0.5 * 1.0
    assert not sampler.parked  # not above 0.95
    sampler.record("s1", 1.0)
    assert sampler.success["s1"] == pytest.approx(0.975, abs=1e-9)
    assert "s1" in sampler.parked
    sampler.record("s2", 0.02)
    sampler.record("s2", 0.02)
    assert "s2" not in sampler.parked  # not below 0.02


def test_sampler_frees_parked_samples_until_n_are_left() -> None:
    sampler = Sampler(IDS, seed=0)
    sampler.next(10)
    for name in IDS:
        sampler.record(name, 1.0)
        sampler.record(name, 1.0)
    assert len(sampler.parked) == 10
    assert len(set(sampler.next(6))) == 6
    assert len(sampler.parked) == 4
    assert len(set(sampler.next(8))) == 8


@given(
    n=st.integers(1, 12),
    stop=st.integers(0, 12),
    rates=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=200, max_size=200),
)
def test_sampler_resumes_exactly_at_any_point(n: int, stop: int, rates: list[float]) -> None:
    def run(sampler: Sampler, steps: range) -> list[list[str]]:
        batches: list[list[str]] = []
        for step in steps:
            batches.append(sampler.next(n))
            for place, name in enumerate(dict.fromkeys(batches[-1])):
                sampler.record(name, rates[(step * 13 + place) % 200])
        return batches

    whole, first, second = (Sampler(IDS, seed=7) for _ in range(3))
    expected = run(whole, range(16))
    head = run(first, range(stop))
    second.load_state(json.loads(json.dumps(first.state())))
    assert head + run(second, range(stop, 16)) == expected
    assert second.state() == whole.state()


def test_sampler_state_is_a_copy() -> None:
    sampler = Sampler(IDS, seed=0)
    sampler.next(3)
    state = sampler.state()
    before = json.dumps(state)
    sampler.next(3)
    sampler.record("s0", 0.0)
    assert json.dumps(state) == before


def test_sampler_refuses_a_state_of_other_data() -> None:
    state = Sampler(IDS, seed=0).state()
    with pytest.raises(DataError, match="another ids"):
        Sampler(IDS[:9], seed=0).load_state(state)
    with pytest.raises(DataError, match="another seed"):
        Sampler(IDS, seed=1).load_state(state)


def test_sampler_rejects_bad_arguments() -> None:
    with pytest.raises(DataError, match="no samples"):
        Sampler([], seed=0)
    with pytest.raises(DataError, match="twice"):
        Sampler(["a", "a"], seed=0)
    with pytest.raises(ConfigError, match="park_epochs is 0"):
        Sampler(IDS, seed=0, park_epochs=0)
    with pytest.raises(ConfigError, match="asked the sampler for 0"):
        Sampler(IDS, seed=0).next(0)
    with pytest.raises(DataError, match="'nobody' is not one"):
        Sampler(IDS, seed=0).record("nobody", 1.0)
    with pytest.raises(DataError, match=r"solve rate 1\.5"):
        Sampler(IDS, seed=0).record("s0", 1.5)


# -- order -----------------------------------------------------------------------------------------------------------

SIX = ("a", "b", "c", "d", "e", "f")


def _met(order: Any, rates: dict[str, float], *, seed: int = 1) -> Sampler:
    """A sampler in its second epoch; the given samples have these success rates."""
    sampler = Sampler(SIX, seed, order=order)
    sampler.next(6)
    for name, rate in rates.items():
        sampler.record(name, rate)
    return sampler


def test_a_curriculum_goes_from_easy_to_hard_with_the_unmet_in_the_middle() -> None:
    sampler = _met("easy_first", {"a": 0.2, "b": 0.9, "c": 0.6, "d": 0.4})
    order = sampler.next(6)
    assert [name for name in order if name not in "ef"] == ["b", "c", "d", "a"]
    assert order[:2] == ["b", "c"] and set(order[2:4]) == {"e", "f"}


def test_mixed_neighbours_are_of_unlike_difficulty() -> None:
    rates = {"a": 0.9, "b": 0.8, "c": 0.6, "d": 0.5, "e": 0.3, "f": 0.1}
    assert _met("mixed", rates).next(6) == ["a", "c", "e", "b", "d", "f"]


@pytest.mark.parametrize("order", ["easy_first", "mixed"])
def test_every_sample_comes_once_in_every_epoch_whatever_the_order(order: Any) -> None:
    sampler = _met(order, {"a": 0.2, "b": 0.9, "c": 0.6})
    assert sorted(sampler.next(4) + sampler.next(2)) == list(SIX)
    assert sorted(sampler.next(6)) == list(SIX)


def test_samples_of_equal_success_are_shuffled_by_the_seed() -> None:
    orders = {tuple(_met("easy_first", dict.fromkeys(SIX, 0.5), seed=seed).next(6)) for seed in range(5)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("names", "expected"),
    [("abcdef", "acebdf"), ("abcdefg", "adgbecf"), ("ab", "ab"), ("a", "a"), ("", "")],
)
def test_interleave_takes_in_turn_from_equal_runs(names: str, expected: str) -> None:
    assert interleave(list(names), 3) == list(expected)


def test_a_state_of_another_order_is_refused() -> None:
    with pytest.raises(DataError, match="another order"):
        Sampler(SIX, 1, order="mixed").load_state(Sampler(SIX, 1).state())
