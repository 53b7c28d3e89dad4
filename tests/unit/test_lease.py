"""When GPUs go back by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.agent.lease import ENDING, Facts, Why, cause, deadlines

times = st.floats(0, 1e6)
facts = st.builds(Facts, times, times, times, times, times, st.booleans(), times, st.sampled_from([Why.KEEP, Why.HOLD]), times, times)
BASE = Facts(
    joined_s=0,
    time_limit_s=3600,
    client_s=0,
    busy_s=0,
    unreadable_s=0.0,
    cell_active=False,
    quiet_s=0,
    patience=Why.KEEP,
    patience_s=1800,
    lease_s=600,
)


def at(what: Why, known: Facts) -> float | None:
    return {deadline.what: deadline.at_s for deadline in deadlines(known)}.get(what)


@given(facts)
def test_soonest_first_and_each_at_most_once(known: Facts) -> None:
    found = deadlines(known)
    assert [deadline.at_s for deadline in found] == sorted(deadline.at_s for deadline in found)
    assert len({deadline.what for deadline in found}) == len(found)
    assert {Why.TIME, Why.LEASE} <= {deadline.what for deadline in found}
    assert all(cause(deadline.what, known) and deadline.what in ENDING for deadline in found)


@given(facts)
def test_the_time_limit_counts_from_joined_whatever_happens(known: Facts) -> None:
    assert at(Why.TIME, known) == known.joined_s + known.time_limit_s


@given(facts)
def test_a_running_cell_is_never_idle(known: Facts) -> None:
    assert at(Why.KEEP, replace(known, cell_active=True)) is None
    assert at(Why.HOLD, replace(known, cell_active=True)) is None


@given(facts, st.floats(0, 1e6))
def test_a_client_or_work_never_brings_an_end_nearer(known: Facts, later: float) -> None:
    for name in ("client_s", "busy_s"):
        sooner = {deadline.what: deadline.at_s for deadline in deadlines(known)}
        after = deadlines(replace(known, **{name: max(getattr(known, name), later)}))
        assert all(deadline.at_s >= sooner[deadline.what] for deadline in after)


def test_keeping_counts_from_the_last_work_of_any_kind_a_hold_from_the_failure() -> None:
    worked = replace(BASE, quiet_s=100, busy_s=500)
    assert at(Why.KEEP, worked) == 2300
    assert at(Why.HOLD, replace(worked, patience=Why.HOLD, patience_s=600)) == 700


def test_the_lease_of_a_cell_that_computes_moves_with_its_work() -> None:
    computing = replace(BASE, cell_active=True, busy_s=5000)
    assert at(Why.LEASE, computing) == 5600
    assert at(Why.LEASE, replace(computing, busy_s=0, client_s=700)) == 1300


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (Why.TIME, "its time limit of 1:00:00 was reached"),
        (Why.KEEP, "nothing ran on it for 30:00"),
        (Why.HOLD, "its failed cell was not run again within 30:00"),
        (Why.LEASE, "no notebook was there for 10:00 and its GPUs did nothing"),
    ],
)
def test_causes_are_sentences(what: Why, sentence: str) -> None:
    assert cause(what, BASE) == sentence
