"""Random programs split into cells give the same namespace whether all cells run here or some of them on the cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_aicluster.errors import NameConflict, NameMissing
from tests.unit.two_sides import TwoSides

START = """
class Box:
  made = []
  def __init__(self, held): self.held = held
  def put(self, x): self.held = x; return self
def add():
  global n
  n += 1
  log.append(n)
def pair():
  k = 0
  def up():
    nonlocal k
    k += 1
    return k
  return up, lambda: k
n, log, a, b, c, d = 0, [], [1], {'k': [2]}, 'text', None
up, now = pair()
"""
NAMES = ("n", "log", "a", "b", "c", "d", "up", "now", "Box", "e", "hidden")
_name = st.sampled_from(("a", "b", "c", "d", "e"))
STATEMENTS = st.one_of(
    st.builds("{0} = {1}".format, _name, _name),
    st.builds("{0} = [{1}, {1}, 1]".format, _name, _name),
    st.builds("{0} = {{'k': {1}}}".format, _name, _name),
    st.builds("{0} = Box({1})".format, _name, _name),
    st.builds("{0}.append(len(log))".format, _name),
    st.builds("{0}['k'] = {1}".format, _name, _name),
    st.builds("{0}.held = {1}".format, _name, _name),
    st.builds("{0}.put({1})".format, _name, _name),
    st.builds("{0}[0].append('deep')".format, _name),
    st.builds("{0}.held['k'].append(n)".format, _name),
    st.builds("{0} += [n]".format, _name),
    st.builds("del {0}".format, _name),
    st.builds("Box.made.append({0})".format, st.sampled_from(("n", "'x'"))),
    st.just("exec('hidden = [7]')"),
    st.builds("for i in range(2): {0} = [i, {1}]".format, _name, _name),
    st.builds("{0} = lambda: {1}".format, _name, _name),
    st.builds("{0} = {1}()".format, _name, _name),
    st.builds("try: {0}.append({1})\nexcept AttributeError: {0} = [{1}]".format, _name, _name),
    st.builds("if {0} is {1}: d = 'same'".format, _name, _name),
    st.sampled_from(("add()", "up()", "n = now()", "log = [up, now]", "log.clear()", "up, now = pair()", "n = up()", "1 / 0")),
)
PROGRAMS = st.lists(st.tuples(st.booleans(), st.lists(STATEMENTS, min_size=1, max_size=4).map("\n".join)), min_size=1, max_size=6)


@given(PROGRAMS)
@settings(max_examples=100, deadline=None)
def test_a_program_leaves_the_same_names_wherever_its_cells_run(program: list[tuple[bool, str]]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        alone, both = TwoSides(Path(one)), TwoSides(Path(other))
        for sides in (alone, both):
            sides.local(START)
        for away, code in program:
            alone.local(code)
            if not away:
                both.local(code)
                continue
            try:
                # An alias is known to the cluster only once it has travelled.
                both.cell(code, also=tuple(name for name in NAMES if name in both.here and name not in both.travelled))
            except NameMissing:  # said before anything runs, where here the first statements would have run
                assert isinstance(alone.raised, (NameError, ZeroDivisionError, TypeError, AttributeError, KeyError, IndexError))
                return
            except NameConflict:  # changed there under another name, and here
                return
            assert type(both.raised) is type(alone.raised)
            assert shape(both.here) == shape(alone.here)


def shape(namespace: dict[str, Any]) -> Any:
    """The names with all they hold, and what is the same object as what: equal exactly where two namespaces are alike."""
    seen: dict[int, int] = {}
    return {name: _shape(namespace[name], seen) for name in sorted(namespace) if name in (*NAMES, "i")}


def _shape(value: Any, seen: dict[int, int]) -> Any:
    if isinstance(value, (int, str, type(None), ModuleType)):
        return value
    if id(value) in seen:
        return f"the same as {seen[id(value)]}"
    if not isinstance(value, (FunctionType, type)):
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return {key: _shape(part, seen) for key, part in value.items()}
    if isinstance(value, list):
        return [_shape(part, seen) for part in value]
    if isinstance(value, FunctionType):
        return value.__qualname__, [_shape(cell.cell_contents, seen) for cell in value.__closure__ or ()]
    if isinstance(value, type):
        return value.__name__, _shape(value.__dict__["made"], seen)
    return type(value).__name__, _shape(vars(value), seen)
