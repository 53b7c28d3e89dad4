"""Names between a notebook and a driver, cell after cell: only what the other side lacks travels, and it is as if all had run here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jupyter_aicluster.errors import NameConflict, NameMissing
from jupyter_aicluster.payload import RemoteValue, Stub
from tests.unit.two_sides import TwoSides


@pytest.fixture
def sides(tmp_path: Path) -> TwoSides:
    return TwoSides(tmp_path)


def test_what_the_cluster_has_is_not_sent_again(sides: TwoSides) -> None:
    sides.local("import numpy as np\ndata = np.arange(1e6)\nconfig = {'lr': 1}\ndef f(x): return x.sum() * config['lr']")
    sides.cell("y = f(data)")
    assert sides.sent == {"data", "config", "f"}
    sides.cell("z = f(data) + y")
    assert (sides.sent, sides.size) == (set(), 0)
    sides.local("config['lr'] = 2")
    sides.cell("z = f(data) + y")
    assert sides.sent == {"config"}
    assert sides.here["z"] == 1.5 * 2 * sides.here["y"]


def test_what_did_not_change_does_not_come_back(sides: TwoSides) -> None:
    sides.local("data = [1, 2]\nlog = []")
    sides.cell("data.index(1); log.append(len(data))")
    assert sides.back == {"log"}
    assert sides.here["log"] == [2]


def test_a_function_or_class_defined_again_is_sent_again(sides: TwoSides) -> None:
    sides.local("def f(): return 1\nclass A:\n  def g(self): return f()")
    sides.cell("y = A().g()")
    sides.cell("y = A().g() + f()")
    assert sides.sent == set()
    sides.local("def f(): return 5")
    sides.cell("y = A().g()")
    assert (sides.sent, sides.here["y"]) == ({"f"}, 5)


def test_an_optimizer_keeps_its_model_whichever_of_them_changes(sides: TwoSides) -> None:
    sides.local("class Box: pass\nmodel, opt = Box(), Box()\nmodel.w = [0]\nopt.weights = model.w\nopt.lr = 1")
    sides.cell("opt.weights[0] += opt.lr\nassert model.w[0] == 1")
    assert sides.raised is None
    assert {"opt", "model"} <= sides.back
    assert sides.here["opt"].weights is sides.here["model"].w
    sides.local("opt.lr = 10")
    sides.cell("opt.weights[0] += opt.lr")  # does not name the model
    assert {"opt", "model"} <= sides.sent
    assert sides.there["opt"].weights is sides.there["model"].w
    assert sides.here["model"].w == [11]
    assert sides.here["opt"].weights is sides.here["model"].w


def test_a_change_through_an_alias_comes_back_even_where_the_alias_is_gone(sides: TwoSides) -> None:
    sides.local("a = [1]\nb = {'a': a}")
    sides.cell("assert b['a'] is a")
    sides.cell("a.append(2)\na = 5")
    assert (sides.here["a"], sides.here["b"]) == (5, {"a": [1, 2]})
    assert sides.raised is None


def test_what_a_called_function_changes_comes_back(sides: TwoSides) -> None:
    sides.local("history = []\ncount = 0\ndef step():\n  global count, made\n  count += 1\n  made = count * 2\n  history.append(count)")
    sides.cell("step()")
    sides.cell("step()\nexec('hidden = 3')")
    assert [sides.here[name] for name in ("history", "count", "made", "hidden")] == [[1, 2], 2, 4, 3]


def test_closures_share_their_variable_on_both_sides(sides: TwoSides) -> None:
    sides.local("def pair():\n  n = 0\n  def up():\n    nonlocal n\n    n += 1\n  return up, lambda: n\nup, now = pair()")
    sides.cell("up(); y = now()")
    sides.cell("up()")
    sides.local("up()\ny = now()")
    assert sides.here["y"] == 3


def test_a_name_deleted_on_one_side_is_gone_on_the_other(sides: TwoSides) -> None:
    sides.local("a = b = 1")
    sides.cell("c = a + b\ndel a")
    assert "a" not in sides.here
    sides.local("del b")
    with pytest.raises(NameMissing):
        sides.cell("c = b")
    sides.cell("c = 'b' in globals()")
    assert sides.here["c"] is False


def test_a_name_changed_on_both_sides_is_an_error_that_says_how_to_choose(sides: TwoSides) -> None:
    sides.local("x, other = [1], [1]")
    sides.cell("x.append('there')\ny = len(x) + len(other)", out=("y",))
    sides.local("x.append('here')\nother.append(2)")
    with pytest.raises(NameConflict, match=r"x changed here and on the cluster(.|\n)*--in x sends yours, --out x takes the cluster's"):
        sides.cell("y = x, other")
    assert (sides.there["x"], sides.there["other"]) == ([1, "there"], [1])  # nothing was taken, the cell did not run
    sides.cell("y = list(x), other", out=("x", "y"))
    assert sides.here["x"] == [1, "there"]
    assert sides.here["y"] == ([1, "there"], [1, 2])
    sides.cell("z = x.append('again')", out=("z",))
    sides.local("x = 'mine'")
    sides.cell("z = x", also=("x",))
    assert (sides.here["z"], sides.there["x"]) == ("mine", "mine")


def test_names_made_on_both_sides_apart_conflict_only_where_they_differ(sides: TwoSides) -> None:
    sides.cell("import math\nn = 1\nm = 1\ny = 2", out=("y",))
    sides.local("import math\nn = 1\nm = 5")
    sides.cell("z = math.floor(n)")
    with pytest.raises(NameConflict, match="m changed"):
        sides.cell("z = m")


def test_names_assigned_before_an_exception_come_back(sides: TwoSides) -> None:
    sides.local("seen = []")
    sides.cell("a = 1\nseen.append(a)\n1 / 0\nb = 2")
    assert isinstance(sides.raised, ZeroDivisionError)
    assert (sides.here["a"], sides.here["seen"], "b" in sides.here) == (1, [1], False)


def test_a_large_output_is_a_remote_value_that_the_next_cell_uses_there(tmp_path: Path) -> None:
    sides = TwoSides(tmp_path, max_output_bytes=100_000)
    sides.cell("import numpy as np\nbig = np.arange(100_000)\nsmall = big[:3].copy()")
    value = sides.here["big"]
    assert isinstance(value, RemoteValue)
    assert (value.type_name, value.size_bytes, list(sides.here["small"])) == ("numpy.ndarray", 800_000, [0, 1, 2])
    assert repr(value) == "<big: numpy.ndarray, 800 kB, in its cluster's storage. big.fetch() brings it here.>"
    np.testing.assert_array_equal(value.fetch(), np.arange(100_000))
    sides.cell("total = int(big.sum())")
    assert (sides.sent, sides.back, sides.here["big"] is value) == (set(), {"total"}, True)
    assert sides.here["total"] == sum(range(100_000))
    sides.local("big = 1")
    sides.cell("total = big")
    assert sides.here["total"] == 1


def test_a_stub_stays_and_its_original_is_used_there(sides: TwoSides) -> None:
    sides.cell("import threading\nlock = threading.Lock()")
    assert isinstance(sides.here["lock"], Stub)
    sides.cell("free = lock.acquire(False)")
    assert (sides.here["free"], sides.sent, sides.back) == (True, set(), {"free"})


def test_an_unchanged_frame_is_not_sent_for_a_column_taken_from_it(sides: TwoSides) -> None:
    pytest.importorskip("pandas")
    sides.local("import pandas as pd\nframe = pd.DataFrame({'a': range(1000), 'b': 1.0})\npart = frame[['a']] + 1")
    sides.cell("y = len(frame) + len(part)")
    sides.cell("y = len(frame) + len(part)")
    assert sides.sent == set()
    sides.local("part = part + 1")
    sides.cell("y = len(frame) + len(part)")
    assert sides.sent == {"part"}
