"""transition(): total, monotone within an attempt, ENDED for good."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.state import End, Ending, Observation, State, Status, Target, Word, transition

ORDER = list(State)
ends = st.builds(End, st.sampled_from(Ending), st.text(), st.floats(0, 2e9))
observations = st.builds(Observation, st.sampled_from(Word), attempt=st.integers(1, 4), reason=st.text(max_size=5), end=st.none() | ends)
statuses = st.builds(Status, st.sampled_from(State), st.integers(1, 4), observations, st.none() | ends)


@given(statuses, st.sampled_from(Target), observations)
def test_total_and_monotone_within_an_attempt(status: Status, target: Target, seen: Observation) -> None:
    after = transition(status, target, seen)
    assert after.attempt >= status.attempt
    if after.attempt == status.attempt:
        assert ORDER.index(after.state) >= ORDER.index(status.state)
    assert after.state in State


@given(statuses, st.lists(st.tuples(st.sampled_from(Target), observations)))
def test_no_sequence_goes_back_and_ended_is_final(status: Status, story: list[tuple[Target, Observation]]) -> None:
    for target, seen in story:
        after = transition(status, target, seen)
        assert (after.attempt, ORDER.index(after.state)) >= (status.attempt, ORDER.index(status.state))
        if status.ended:
            assert after == status
        status = after


@given(statuses, st.sampled_from(Target), observations)
def test_seen_again_it_changes_nothing(status: Status, target: Target, seen: Observation) -> None:
    once = transition(status, target, seen)
    assert transition(once, target, seen) == once


@given(statuses, st.sampled_from(Target), st.sampled_from([Word.UNKNOWN, Word.ABSENT]), st.integers(1, 4))
def test_no_answer_and_absence_change_no_state(status: Status, target: Target, word: Word, attempt: int) -> None:
    after = transition(status, target, Observation(word, attempt=attempt))
    assert (after.state, after.attempt, after.end) == (status.state, status.attempt, status.end)


@given(statuses, observations)
def test_towards_down_a_living_cluster_is_ending(status: Status, seen: Observation) -> None:
    after = transition(status, Target.DOWN, seen)
    if after != status and seen.word not in (Word.UNKNOWN, Word.ABSENT, Word.ENDED) and after.observation == seen:
        assert after.state is State.ENDING


@pytest.mark.parametrize(
    ("word", "state"),
    [
        (Word.QUEUED, State.QUEUED),
        (Word.GRANTED, State.STARTING),
        (Word.READY, State.READY),
        (Word.RELEASING, State.ENDING),
        (Word.ENDED, State.ENDED),
    ],
)
def test_what_a_word_shows(word: Word, state: State) -> None:
    assert transition(Status(), Target.UP, Observation(word)).state is state


def test_a_later_attempt_starts_again_and_an_earlier_one_is_stale() -> None:
    ready = transition(Status(), Target.UP, Observation(Word.READY))
    again = transition(ready, Target.UP, Observation(Word.QUEUED, attempt=2))
    assert (again.state, again.attempt) == (State.QUEUED, 2)
    assert transition(again, Target.UP, Observation(Word.ENDED, attempt=1)) == again


def test_the_schedulers_older_view_of_a_ready_cluster_is_no_news() -> None:
    ready = transition(Status(), Target.UP, Observation(Word.READY, reason="2 of 2 nodes"))
    assert transition(ready, Target.UP, Observation(Word.GRANTED, reason="holds 4")) == ready


def test_after_a_silence_the_view_is_news_again() -> None:
    silent = transition(Status(State.READY), Target.UP, Observation(Word.UNKNOWN, reason="no answer"))
    assert transition(silent, Target.UP, Observation(Word.GRANTED, reason="holds 4")).observation.reason == "holds 4"


@given(observations)
def test_observations_survive_their_record(seen: Observation) -> None:
    read = Observation.from_json(json.loads(json.dumps(seen.to_json())))
    assert (read.word, read.attempt, read.reason, read.end) == (seen.word, seen.attempt, seen.reason, None)


def test_words_of_newer_versions_are_values_not_crashes() -> None:
    assert Observation.from_json({"word": "hibernating", "moon": "full"}).word is Word.UNKNOWN
    end = End.from_json({"ending": "evicted", "cause": "a new reason", "ended_s": 5.0, "moon": "full"})
    assert (end.ending, end.cause) == (Ending.FAILED, "a new reason")


@given(ends)
def test_end_records_survive(end: End) -> None:
    assert End.from_json(json.loads(json.dumps(end.to_json()))) == end


def test_gpu_seconds_held() -> None:
    assert End(Ending.DONE, "", ended_s=100.0, joined_s=40.0, gpus=16).held_gpu_s == 960.0
    assert End(Ending.FAILED, "", ended_s=100.0, gpus=16).held_gpu_s == 0.0  # never joined
    assert End(Ending.DONE, "", ended_s=30.0, joined_s=40.0, gpus=16).held_gpu_s == 0.0  # clocks of two machines
