"""A real driver process and cells that treat it roughly: descriptors, forks, floods, hostile folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.driver_hub import DriverHub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHub]:
    with DriverHub(tmp_path_factory.mktemp("driver")) as running:
        yield running


def test_modules_of_the_notebooks_folder_are_the_cells_and_shadow_nothing_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b\n\u00fc\""
    folder.mkdir()
    for name in ("json", "ray", "asyncio", "ssl", "aiohttp", "IPython", "typing"):
        (folder / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    (folder / "mine.py").write_text("answer = 42")
    with DriverHub(tmp_path, cwd=folder) as hub:
        cell = hub.cell("import mine, os\nx = mine.answer\nfolder = os.getcwd()", None, ("x", "folder"))
        assert (cell.phase, cell.values) == ("done", {"x": 42, "folder": str(folder)})


def test_a_closed_descriptor_is_the_cells_loss_alone(hub: DriverHub) -> None:
    assert hub.cell("import os\nos.close(1)\nprint('by Python')").text() == "by Python\n"
    assert hub.cell("import os\n_ = os.system('echo by a child')").text() == "by a child\n"


def test_a_forked_child_that_comes_back_ends_and_speaks_to_nobody(hub: DriverHub) -> None:
    code = "import os\npid = os.fork()\nif pid: code = os.waitpid(pid, 0)[1]\nelse: display('child'); code = 'child'"
    cell = hub.cell(code, None, ("code",))
    assert (cell.phase, cell.values) == ("done", {"code": 0})
    assert cell.outputs == []


def test_what_is_printed_just_before_a_kill_is_in_the_log(tmp_path: Path) -> None:
    with DriverHub(tmp_path) as hub:
        hub.start("import os\nfor i in range(1000): print('line', i)\nos.kill(os.getpid(), 9)")
        assert hub.process is not None
        assert hub.process.wait(30) == -9
        assert "line 999\n" in hub.log.read_text()


def test_a_display_too_large_to_travel_leaves_a_word(hub: DriverHub) -> None:
    cell = hub.cell("'x' * 100_000_000")
    text = cell.outputs[-1]["data"]["text/plain"]
    assert len(text) < 10_000
    assert text.endswith("[too large to show: text/plain of 100 MB]")


def test_an_exception_with_a_huge_text_still_ends_the_cell(hub: DriverHub) -> None:
    cell = hub.cell("raise ValueError('x' * 100_000_000)")
    assert cell.phase == "failed"
    assert len(str(cell.report)) < 200_000


def test_an_exception_whose_text_fails_still_ends_the_cell(hub: DriverHub) -> None:
    cell = hub.cell("class Bad(Exception):\n  def __str__(self): raise OSError\nraise Bad")
    assert cell.phase == "failed"


def test_a_hub_without_room_for_the_values_keeps_them_in_the_session(hub: DriverHub) -> None:
    hub.put_status = 507
    cell = hub.cell("kept = 7", None, ("kept",))
    hub.put_status = 200
    assert (cell.phase, cell.report["names"]) == ("done", [])
    notice = next(event["d"]["text"] for event in hub.events if event["k"] == "notice")
    assert notice.startswith("kept stayed on the cluster")
    assert hub.cell("kept += 1", None, ("kept",)).values == {"kept": 8}


def test_a_full_disk_on_the_node_is_the_cells_error_and_no_endless_try(tmp_path: Path) -> None:
    with DriverHub(tmp_path, {"AICLUSTER_SCRATCH": str(tmp_path / "scratch")}) as hub:
        (tmp_path / "scratch").mkdir()
        assert hub.cell("pass").phase == "done"
        (tmp_path / "scratch").rename(tmp_path / "gone")  # stands for a folder that takes no file
        cell = hub.cell("x", {"x": 1})
        assert (cell.phase, cell.report["error"]["ename"]) == ("failed", "FileNotFoundError")


def test_a_flood_of_lines_ends_and_is_whole_in_the_log(hub: DriverHub) -> None:
    before = hub.log.stat().st_size
    cell = hub.cell("for i in range(300_000): print('flood', i)")
    assert cell.phase == "done"
    assert len(cell.text()) < 2_100_000
    with hub.log.open() as log:
        log.seek(before)
        assert sum(line.startswith("flood ") for line in log) == 300_000
