"""A rank's process against the hub's driver routes: what it shows, and what it sends back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_aicluster import payload
from tests.unit.driver_hub import DriverHub


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHub]:
    with DriverHub(tmp_path_factory.mktemp("rank"), {"RAY_ADDRESS": "nowhere:1", "AICLUSTER_RANK": "2"}, rank=2) as running:
        yield running


def test_it_prints_to_its_log_alone_and_sends_only_what_is_gathered(rank: DriverHub) -> None:
    cell = rank.cell("print('here')\nx = 1\nloss = a / 2", {"a": 3}, ("x", "loss"), spmd="gpu", gather=("loss", "nothing"))
    assert (cell.phase, cell.outputs, cell.values) == ("done", [], {})
    assert (cell.report["names"], cell.report["gathered"]) == ([], ["loss"])
    assert payload.unpack(io.BytesIO(rank.values[f"{cell.id}.rank-2"])) == {"loss": 1.5}
    assert "here\n" in rank.log.read_text()


def test_where_it_fails_the_end_of_its_stderr_is_shown(rank: DriverHub) -> None:
    cell = rank.cell("import sys\nprint('no')\nprint('x' * 9000 + 'nan', file=sys.stderr)\nloss = 1\n1 / 0", spmd="gpu", gather=("loss",))
    assert (cell.phase, cell.report["gathered"]) == ("failed", [])
    (shown,) = cell.outputs
    assert shown["name"] == "stderr"
    assert shown["text"].endswith("xnan\n")
    assert len(shown["text"]) == 4000
    assert rank.cell("2", spmd="gpu").outputs == []  # nothing is left over for the next cell


def test_a_cell_that_was_interrupted_before_it_began_here_ends_too(rank: DriverHub) -> None:
    cell = rank.finish(rank.interrupted_at_once("ran = True"))
    assert cell.phase == "interrupted"
    assert rank.cell("'ran' in globals()", spmd="gpu").phase == "done"


def test_the_speaker_for_all(tmp_path: Path) -> None:
    with DriverHub(tmp_path, rank=0) as rank:
        cell = rank.cell("print('here')\nx = loss = 1", None, ("x", "loss"), spmd="gpu", gather=("loss",))
        assert (cell.text(), cell.values) == ("here\n", {"x": 1})
        assert payload.unpack(io.BytesIO(rank.values[f"{cell.id}.rank-0"])) == {"loss": 1}


def test_without_ray_there_is_nothing_to_hold(tmp_path: Path) -> None:
    with DriverHub(tmp_path) as driver:
        driver.hold()
        driver.wait(lambda: {"k": "driver", "d": {"ready": True, "holds": True}} in driver.events)
