from __future__ import annotations

import hashlib
import inspect
import io
import linecache
import sys
import threading
import traceback
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jupyter_aicluster.errors import CellFailed, ShipError
from jupyter_aicluster.payload import Packed, Stub, measure, pack, pack_outputs, ship_check, unpack

NOTEBOOK = """
K = 3
def counter():
    n = 0
    def step():
        nonlocal n
        n += K
        return n
    def now():
        return n
    return step, now
def factorial(n): return 1 if n < 2 else n * factorial(n - 1)
def later():
    if False:
        value = 1
    return lambda: value
def bump():
    global K
    K += 1
class Base:
    def who(self): return K
class Child(Base):
    def who(self): return super().who() + 1
def annotated(x: int, *, y: "int" = 2) -> int:
    "doc"
    return x + y
annotated.note = [1]
"""


class Sides:
    """Two notebooks' ``__main__`` in one process: `send` packs on one and unpacks on the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.there = ModuleType("__main__"), ModuleType("__main__")
        self._patch = monkeypatch

    def run(self, code: str, filename: str = "<In [1]>") -> dict[str, Any]:
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        self._patch.setitem(sys.modules, "__main__", self.here)
        exec(compile(code, filename, "exec", dont_inherit=True), self.here.__dict__)
        return self.here.__dict__

    def send(self, *names: str) -> dict[str, Any]:
        file = io.BytesIO()
        self._patch.setitem(sys.modules, "__main__", self.here)
        pack({name: self.here.__dict__[name] for name in names}, file)
        linecache.cache.clear()
        self._patch.setitem(sys.modules, "__main__", self.there)
        file.seek(0)
        values = unpack(file)
        self.there.__dict__.update(values)
        return values


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Sides:
    return Sides(monkeypatch)


def there_and_back(values: Mapping[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    pack(values, file)
    file.seek(0)
    return unpack(file)


def outputs(values: Mapping[str, Any], max_bytes: int | None = None) -> tuple[Packed, dict[str, Any]]:
    file = io.BytesIO()
    packed = pack_outputs(values, file, max_bytes)
    file.seek(0)
    return packed, unpack(file, tolerant=True)


def test_what_names_share_is_still_shared() -> None:
    array = np.arange(1000.0)
    values = there_and_back({"a": array, "view": {"of": array}, "b": array})
    assert values["a"] is values["b"] is values["view"]["of"]
    values["a"][0] = 5  # arrays own their memory: writable
    np.testing.assert_array_equal(values["b"][:3], [5, 1, 2])


def test_size_and_digest_are_those_of_the_file() -> None:
    file = io.BytesIO()
    packed = pack({"a": np.zeros(10_000), "b": "text"}, file)
    assert packed == Packed(len(file.getvalue()), hashlib.sha256(file.getvalue()).hexdigest(), ("a", "b"))


def test_functions_live_in_the_other_main(sides: Sides) -> None:
    sides.run(NOTEBOOK)
    values = sides.send("factorial", "bump", "Child")
    assert "K" not in values
    sides.there.__dict__["K"] = 10
    values["bump"]()
    assert sides.there.__dict__["K"] == 11
    assert values["factorial"](5) == 120
    assert values["Child"]().who() == 12
    assert values["factorial"].__globals__ is sides.there.__dict__


def test_closures_keep_sharing_their_variables(sides: Sides) -> None:
    space = sides.run(NOTEBOOK + "step, now = counter()\nstep()\nunset = later()\n")
    values = sides.send("K", "step", "now", "unset")
    assert (values["step"](), values["now"](), space["now"]()) == (6, 6, 3)
    with pytest.raises(NameError):
        values["unset"]()


def test_functions_keep_what_is_written_on_them(sides: Sides) -> None:
    sides.run(NOTEBOOK)
    function = sides.send("annotated")["annotated"]
    assert (function(1), function.__doc__, function.note, function.__qualname__) == (3, "doc", [1], "annotated")
    assert str(inspect.signature(function)) == "(x: int, *, y: 'int' = 2) -> int"


def test_source_goes_along(sides: Sides) -> None:
    sides.run(NOTEBOOK, "<In [7]>")
    function = sides.send("factorial")["factorial"]
    assert inspect.getsource(function).startswith("def factorial(n)")
    try:
        function("x")
    except TypeError:
        assert "n * factorial" in traceback.format_exc()


def test_a_class_stays_the_same_class_over_a_round_trip(sides: Sides) -> None:
    space = sides.run(NOTEBOOK + "made = Child()\n")
    values = sides.send("made", "Child")
    assert isinstance(values["made"], values["Child"])
    sides.here, sides.there = sides.there, sides.here
    assert type(sides.send("made")["made"]) is space["Child"]


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        ({"log": [1, Path(__file__).open()]}, r"cfg\['log'\]\[1\]", "an open file"),  # noqa: SIM115
        ((i for i in "ab"), "cfg", "a running generator"),
        ({"a": {"b": threading.Lock()}}, r"cfg\['a'\]\['b'\]", "a lock"),
        (type("Holder", (), {})(), None, None),
    ],
)
def test_an_input_that_cannot_travel_is_named_with_the_part_to_blame(value: Any, path: str | None, what: str | None) -> None:
    if path is None:
        there_and_back({"cfg": value})
        return
    with pytest.raises(ShipError, match=f"cfg cannot travel to the cluster: {path} is {what}") as caught:
        pack({"fine": 1, "cfg": value}, io.BytesIO())
    assert "Nothing was submitted" in str(caught.value)


class Stubborn:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("never")


def test_attributes_and_closures_are_part_of_the_path(sides: Sides) -> None:
    space = sides.run("class Box: pass\nbox = Box()\nbox.lock = None\ndef wrap(x):\n  return lambda: x\n")
    space["box"].lock = threading.Lock()
    with pytest.raises(ShipError, match=r"box\.lock is a lock"):
        sides.send("box")
    space["f"] = space["wrap"](threading.Lock())
    with pytest.raises(ShipError, match=r"f \(its variable x\) is a lock"):
        sides.send("f")


def test_outputs_that_cannot_travel_become_stubs_and_the_others_come() -> None:
    packed, values = outputs({"n": 1, "bad": [Stubborn()], "gen": (i for i in "ab")})
    assert packed.names == ("n",)
    assert set(packed.stubs) == {"bad", "gen"}
    assert values["n"] == 1
    assert values["bad"].type_name == "list"
    assert "bad[0] is" in values["bad"].why
    assert "ZeroDivisionError" in repr(values["bad"]) or "never" in repr(values["bad"])
    assert "a running generator" in repr(values["gen"])


def test_the_largest_outputs_stay_when_all_are_too_large() -> None:
    packed, values = outputs({"small": np.zeros(10), "big": np.zeros(100_000)}, max_bytes=100_000)
    assert (packed.names, packed.stubs) == (("small",), ("big",))
    assert "about 800 kB" in repr(values["big"])


def test_a_stub_is_not_sent_back() -> None:
    assert there_and_back({"x": Stub("x", "generator", "why"), "y": 2}) == {"y": 2}


def test_an_output_whose_class_is_missing_here_becomes_a_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_there")
    module.__spec__ = ModuleSpec("only_there", None)  # cloudpickle sends a module by name only if it has one
    exec("class Thing:\n  def __init__(self): self.x = 1\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_there", module)
    file = io.BytesIO()
    pack_outputs({"thing": module.__dict__["Thing"](), "module": module, "n": 1}, file)
    monkeypatch.delitem(sys.modules, "only_there")
    file.seek(0)
    values = unpack(file, tolerant=True)
    assert values["n"] == 1
    assert isinstance(values["thing"], Stub)
    assert "No module named 'only_there'" in repr(values["module"])
    assert values["thing"].type_name == "only_there.Thing"
    file.seek(0)
    with pytest.raises(CellFailed, match="could not be loaded on the cluster"):
        unpack(file)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"x" + data, lambda data: data[:30]])
def test_a_damaged_payload_is_an_error(damage: Any) -> None:
    file = io.BytesIO()
    pack({"a": np.zeros(1000)}, file)
    with pytest.raises(CellFailed):
        unpack(io.BytesIO(damage(file.getvalue())))


def test_another_python_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    pack({"a": 1}, file)
    monkeypatch.setattr("jupyter_aicluster.payload._PYTHON", "2.7")
    file.seek(0)
    with pytest.raises(CellFailed, match=r"made by Python 3.* and this is Python 2\.7"):
        unpack(file)
    file.seek(0)
    assert isinstance(unpack(file, tolerant=True)["a"], Stub)


def test_sizes_are_about_right_and_cheap() -> None:
    shared = np.zeros(1_000_000)
    sizes = measure({"a": shared, "same": shared, "l": list(range(1000, 1_001_000)), "d": {"x": [shared[:10]]}, "s": "x" * 1000})
    assert sizes["a"] == 8_000_000
    assert sizes["same"] == 0
    assert 30_000_000 < sizes["l"] < 45_000_000
    assert sizes["d"] < 2000
    assert 1000 <= sizes["s"] < 1100


def test_inputs_too_large_are_refused_with_the_flag_that_allows_them() -> None:
    values = {"small": 1, "frame": np.zeros(1_000_000)}
    ship_check(values, 10_000_000)
    with pytest.raises(ShipError, match=r"frame is about 8\.0 MB.*2\.0 MB") as caught:
        ship_check(values, 2_000_000)
    assert "--max-ship" in str(caught.value)


def test_a_container_that_holds_itself_is_measured() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert 0 < measure({"loop": loop})["loop"] < 1000


def test_a_module_is_a_name_and_odd_types_are_measured() -> None:
    class Odd(type):
        __module__ = property(lambda cls: None)  # as of a class that describes its module by a descriptor

    class Value(metaclass=Odd): ...

    assert measure({"np": np})["np"] < 1000
    assert measure({"odd": Value()})["odd"] < 1000
