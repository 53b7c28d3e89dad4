"""Gates: who is missing, by when, in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.agent.gates import Gate, GateName, verdict

gates = st.builds(Gate, st.sampled_from(GateName), st.integers(1, 20), st.floats(0, 1e6))


@given(gates, st.sets(st.integers(0, 19)), st.floats(0, 1e6))
def test_missing_are_those_not_here_and_late_only_after_the_deadline(gate: Gate, have: set[int], now: float) -> None:
    missing = sorted(set(range(gate.want)) - have)
    assert gate.data(have)["missing"] == missing
    assert gate.late(have, now) == (missing if now >= gate.deadline_s else [])


@pytest.mark.parametrize(
    ("name", "late", "cause"),
    [
        (GateName.CONNECTED, [1], "only 1 of 2 nodes connected within 120 s: node 1 missing (its node program never reached the hub)"),
        (GateName.JOINED, [0, 1], "only 0 of 2 nodes joined within 120 s: nodes 0, 1 missing (their raylet did not join the Ray cluster)"),
    ],
)
def test_the_cause_names_the_missing(name: GateName, late: list[int], cause: str) -> None:
    said, evidence = verdict(Gate(name, 2, 0.0), late, {1: "Unable to connect to GCS\nagain"}, 120.4)
    assert said == cause
    assert evidence == "node 1: Unable to connect to GCS\nagain"


def test_many_missing_are_cut_short() -> None:
    said, evidence = verdict(Gate(GateName.CONNECTED, 64, 0.0), list(range(64)), dict.fromkeys(range(64), ""), 5.0)
    assert "nodes 0, 1, 2, 3, 4, 5, 6, 7 … missing" in said
    assert evidence.splitlines() == [f"node {k}: no output yet" for k in range(4)]
