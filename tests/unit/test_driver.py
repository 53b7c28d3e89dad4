"""A real driver process against the hub's driver routes, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_aicluster.agent.outputs import Outputs
from jupyter_aicluster.agent.shell import PlainShell
from jupyter_aicluster.payload import RemoteValue, Stub
from tests.unit.driver_hub import DriverHub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHub]:
    with DriverHub(tmp_path_factory.mktemp("driver")) as running:
        yield running


def test_values_go_in_and_come_back(hub: DriverHub) -> None:
    cell = hub.cell("print('hi')\nx = a + 1\nb.append(x)\nx", {"a": 41, "b": [], "c": [1]}, ("x", "b", "c"))
    assert (cell.phase, cell.values) == ("done", {"x": 42, "b": [42]})
    assert cell.text() == "hi\n"
    assert cell.outputs[-1] == {"output_type": "execute_result", "data": {"text/plain": "42"}, "metadata": {}}


def test_the_namespace_lives_on_and_is_main(hub: DriverHub) -> None:
    hub.cell("import pickle, __main__\nclass Net: pass\nn = 1\ndef add():\n  global n\n  n += 1")
    cell = hub.cell("add()\nprint(n, __main__.n, type(pickle.loads(pickle.dumps(Net()))) is Net, __name__)")
    assert cell.text() == "2 2 True __main__\n"


def test_an_error_shows_the_notebooks_lines_and_names_assigned_before_it_come_back(hub: DriverHub) -> None:
    cell = hub.cell("y = 1\ndef divide(): return y / 0\ndivide()\nz = 2", None, ("y", "z"), label="In [7]")
    assert (cell.phase, cell.report["error"]["ename"], cell.values) == ("failed", "ZeroDivisionError", {"y": 1})
    plain = cell.traceback.replace("\x1b[39m", "")
    assert "In[7]" in plain
    assert "divide" in plain
    assert "jupyter_aicluster" not in plain


def test_a_syntax_error_is_the_cells_error(hub: DriverHub) -> None:
    cell = hub.cell("if 1\n  x")
    assert (cell.phase, cell.report["error"]["ename"]) == ("failed", "SyntaxError")


def test_output_of_c_code_children_and_forks_keeps_its_place(hub: DriverHub) -> None:
    cell = hub.cell(
        "import os, subprocess, sys\n"
        "print('one'); os.system('echo two'); print('three'); subprocess.run(['echo', 'four']); os.write(1, b'five\\n')\n"
        "pid = os.fork()\n"
        "if pid == 0: print('six'); os._exit(0)\n"
        "_ = os.waitpid(pid, 0); print('seven'); sys.stdout.buffer.write(b'eight\\n'); display(9); print('ten', file=sys.stderr)"
    )
    assert cell.text().split() == ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    assert [output["output_type"] for output in cell.outputs][-2:] == ["display_data", "stream"]
    assert cell.text("stderr") == "ten\n"


def test_ipython_syntax_works(hub: DriverHub) -> None:
    cell = hub.cell("name = 'x'\n!echo hello $name\nimport asyncio\nawait asyncio.sleep(0)\n%time q = 5", None, ("q",))
    assert cell.phase == "done"
    assert "hello x" in cell.text()
    assert cell.values == {"q": 5}
    assert hub.cell("%%capture out\nprint('kept')").text() == ""


def test_rich_displays_updates_and_figures(hub: DriverHub) -> None:
    cell = hub.cell(
        "from IPython.display import HTML, clear_output\n"
        "h = display(HTML('<b>1</b>'), display_id='d')\nh.update(HTML('<b>2</b>'))\nclear_output(wait=True)\n"
        "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    )
    kinds = [output["output_type"] for output in cell.outputs]
    assert kinds == ["display_data", "update_display_data", "clear_output", "display_data"]
    assert cell.outputs[1]["transient"] == {"display_id": "d"}
    assert cell.outputs[3]["data"]["image/png"].startswith("iVBOR")


def test_an_interrupt_reaches_the_code_and_the_driver_lives_on(hub: DriverHub) -> None:
    cell_id = hub.start("z = 1\nprint('go')\nimport time\nwhile True: time.sleep(0.01)", None, ("z",))
    hub.wait(lambda: bool(hub.outputs(cell_id)))
    hub.interrupt(cell_id)
    hub.interrupt(cell_id)  # said again, as after a lost connection
    cell = hub.finish(cell_id)
    assert (cell.phase, cell.report["error"]["ename"], cell.values) == ("interrupted", "KeyboardInterrupt", {"z": 1})
    assert "jupyter_aicluster" not in cell.traceback
    assert hub.cell("print(z)").text() == "1\n"


def test_a_cell_interrupted_before_its_turn_does_not_run(hub: DriverHub) -> None:
    first = hub.start("import time\nprint('go')\nwhile True: time.sleep(0.01)")
    hub.wait(lambda: bool(hub.outputs(first)))
    second = hub.start("print('ran')")
    hub.interrupt(second)
    hub.interrupt(first)
    assert hub.finish(first).phase == "interrupted"
    assert (hub.finish(second).phase, hub.finish(second).text()) == ("interrupted", "")


def test_what_cannot_come_back_is_a_stub_and_stays_usable(hub: DriverHub) -> None:
    cell = hub.cell("import threading\nlock = threading.Lock()\nn = 1", None, ("lock", "n"))
    assert cell.values["n"] == 1
    assert isinstance(cell.values["lock"], Stub)
    assert set(cell.report["names"]) == {"lock", "n"}
    assert hub.cell("print(lock.locked())", {"lock": cell.values["lock"]}).text() == "False\n"


def test_input_is_refused_with_a_sentence(hub: DriverHub) -> None:
    cell = hub.cell("input('name? ')")
    assert "cannot ask for input" in cell.report["error"]["evalue"]
    assert "refuse_input" not in cell.traceback


@pytest.mark.parametrize(
    ("code", "phase"), [("import sys; sys.exit(0)", "done"), ("raise SystemExit('bad')", "failed"), ("exit()", "done")]
)
def test_exit_ends_the_cell_not_the_driver(hub: DriverHub, code: str, phase: str) -> None:
    assert hub.cell(code).phase == phase
    assert hub.cell("print('alive')").text() == "alive\n"


def test_inputs_that_are_missing_or_do_not_load_fail_the_cell_with_a_hint(hub: DriverHub) -> None:
    from tests.unit import only_in_tests

    cell = hub.cell("print('ran')", {"thing": only_in_tests.Thing()})
    assert (cell.phase, cell.text()) == ("failed", "")
    assert "--pip" in cell.traceback


def test_a_job_knows_its_checkpoint_folder_and_reports(hub: DriverHub) -> None:
    cell = hub.cell("from jupyter_aicluster import job\nprint(job.checkpoint_dir)\njob.report(step=3, loss=0.5)")
    assert cell.text().strip() == str(hub.run.checkpoints / cell.id)
    assert {"k": "notice", "d": {"text": "step 3 · loss 0.5", "level": "info"}} in hub.events


def test_events_arrive_once_and_in_order_over_a_bad_line(tmp_path: Path) -> None:
    with DriverHub(tmp_path, fail_posts=3) as hub:
        cell = hub.cell("for i in range(1000): print(i)")
        assert cell.text().split() == [str(i) for i in range(1000)]


def test_without_ipython_a_cell_still_runs_and_shows_its_last_value(tmp_path: Path) -> None:
    from types import ModuleType

    shown: list[object] = []
    with (tmp_path / "log").open("wb") as log:
        outputs = Outputs(lambda cell_id, output: shown.append(output["data"]["text/plain"]), log.fileno())
        outputs.begin("c1")
        shell = PlainShell(ModuleType("__main__"), outputs)
        assert not shell.run("import asyncio\nawait asyncio.sleep(0)\ndisplay(1)\n2", "<In [1]>", 1).failed
        outcome = shell.run("def f():\n  1 / 0\nf()", "<In [2]>", 2)
    assert shown == ["1", "2"]
    assert outcome.failed
    text = "\n".join(outcome.traceback)
    assert 'File "<In [2]>", line 2' in text
    assert "shell.py" not in text


def test_a_name_changed_on_both_sides_stops_the_cell_before_it_runs(hub: DriverHub) -> None:
    first = hub.cell("shared.append(1)", {"shared": [0]}, ("nothing",), theirs=("nothing",))
    based = {"shared": first.id}
    cell = hub.cell("print('ran')", {"shared": ["mine"]}, based=based)
    assert (cell.phase, cell.report["admitted"], cell.text()) == ("failed", False, "")
    assert "shared changed here and on the cluster since it last travelled" in cell.report["error"]["evalue"]
    assert "--in shared sends yours, --out shared takes the cluster's" in cell.traceback
    theirs = hub.cell("print(shared)", {"shared": ["mine"]}, ("shared",), based=based, theirs=("shared",))
    assert (theirs.text(), theirs.values) == ("[0, 1]\n", {"shared": [0, 1]})
    assert hub.cell("print(shared)", {"shared": ["mine"]}, based=based, ours=("shared",)).text() == "['mine']\n"


def test_a_name_that_it_was_taken_to_have_is_said_to_be_missing(hub: DriverHub) -> None:
    cell = hub.cell("print('ran')", None, based={"vanished": "c0"})
    assert (cell.phase, cell.report["lacks"], cell.text()) == ("failed", ["vanished"], "")
    assert "run the cell again" in cell.traceback


def test_a_large_output_goes_into_storage_and_its_name_says_where(hub: DriverHub) -> None:
    cell = hub.cell("big = bytes(10_000)\nsmall = 1", None, ("big", "small"), max_output_bytes=1000)
    value = cell.values["big"]
    assert isinstance(value, RemoteValue)
    assert (cell.values["small"], value.size_bytes > 10_000, cell.report["stayed"]) == (1, True, [])
    path = hub.run.values / "fetched"
    path.write_bytes(hub.values[value.key])
    assert replace(value, source=lambda key: path).fetch() == bytes(10_000)


def test_what_no_storage_has_room_for_is_said_to_have_stayed(hub: DriverHub) -> None:
    hub.put_status = 507
    cell = hub.cell("huge = [1]", None, ("huge",))
    hub.put_status = 200
    assert (cell.phase, cell.report["stayed"]) == ("done", ["huge"])
    assert hub.cell("huge.append(2)", None, ("huge",)).values == {"huge": [1, 2]}


def test_the_hub_hears_what_variables_there_are(hub: DriverHub) -> None:
    hub.cell("import os\nweights = bytes(100_000)")
    names = [event["d"] for event in hub.events if event["k"] == "names"][-1]
    assert names["weights"][0] == "bytes"
    assert names["weights"][1] >= 100_000
    assert not {"os", "In", "display", "get_ipython"} & set(names)
