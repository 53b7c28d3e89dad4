from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.names import analyse, globals_read, inputs

CASES = {  # code: (required, other names read, writes, of which always)
    "x = a + 1\nx": ("a", "", "x", "x"),
    "s += 1": ("s", "", "s", "s"),
    "x: T = a": ("T a", "", "x", "x"),
    "x: T": ("T", "", "", ""),
    "def f(n): return g * f(n - 1)\nf(2)\ng = 3": ("", "g", "f g", "f g"),
    "@deco\ndef f(a=b, *, c: T = d) -> R: ...": ("deco b d", "", "f", "f"),
    "def f():\n global G\n G = 1": ("", "", "f G", "f"),
    "lambda u: u + v": ("", "v", "", ""),
    "for i in r: s += i": ("r", "s", "i s", ""),
    "for i in r:\n  t = i\nelse:\n  u = 1": ("r", "", "i t u", ""),
    "while c: c = f(c)": ("c", "f", "c", ""),
    "if c: x = 1\nelse: x = 2\nx": ("c", "", "x", "x"),
    "if c: x = 1\nx": ("c", "x", "x", ""),
    "try:\n  q\nexcept KeyError as e: q = 1\nq": ("", "q KeyError", "q e", ""),
    "try:\n  q = 1\nfinally:\n  z = w": ("w", "", "q z", "q z"),
    "with o(p) as f: t = f.read()": ("o p", "", "f t", "f t"),
    "[x * k for x in l if (y := x)]": ("l", "k", "y", ""),
    "{a: b for a, b in c.items() for b in a}": ("c", "", "", ""),
    "[x for x in x]": ("x", "", "", ""),
    "class A(B):\n  z = 1\n  w = z + c0\n  def m(self): return z": ("B c0", "z", "A", "A"),
    "import os.path, numpy as np\nfrom a import b as c": ("", "", "os np c", "os np c"),
    "from m import *\nzz": ("", "zz", "", ""),
    "a and b": ("a", "b", "", ""),
    "a if b else c": ("b", "a c", "", ""),
    "match v:\n  case {'a': n, **rest}: m = n\n  case [*others] as whole: pass": ("v", "", "n rest m others whole", ""),
    "del a\na": ("a", "", "a", ""),
    "len = 3\nlen": ("", "", "len", "len"),
    "await f()\nasync with g() as h: pass": ("f g", "", "h", "h"),
    "f'{x:>{w}}'": ("x w", "", "", ""),
    "get_ipython().run_line_magic('timeit', '-n 10 fit(x)')": ("", "fit x", "", ""),
    "get_ipython().run_cell_magic('time', '', 'y = fit(x)\\n')": ("", "fit x", "y", ""),
    "get_ipython().system('ls {d} $e ${f}')": ("", "d e f", "", ""),
}


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@pytest.mark.parametrize("code", CASES)
def test_what_a_cell_reads_and_writes(code: str) -> None:
    required, other, writes, always = (names(text) for text in CASES[code])
    found = analyse(code)
    assert (found.required, found.reads - found.required, found.writes, found.always) == (required, other, writes, always)


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("x.a.b[0].append(v)", "x v"),
        ("df['a'] = 1\ndel d[k]\nm.lr += 1", "df d m"),
        ("train(model, data=loader, *more)", "model loader more"),
        ("def step():\n  model.weight[0] = 1\n  opt.step()", "model opt"),
        ("[item.pop() for item in items]", ""),
        ("a + b[0] * c.d", ""),
    ],
)
def test_what_a_cell_may_change_in_place(code: str, changes: str) -> None:
    assert analyse(code).changes == names(changes)


@pytest.mark.parametrize(
    ("code", "results"),
    [
        ("import ray\n@ray.remote\ndef f(k): return k\nout = ray.get([f.remote(k) for k in range(4)])", "out"),
        ("@ray.remote(num_gpus=1)\nclass A: pass\na = A.remote()\nrefs = [a.m.remote(k) for k in l]\nx, y = ray.get(refs)", "x y"),
        ("from ray import remote, put\n@remote\ndef f(): pass\nr = ray.put(3)\nr = 3", "r"),
        ("import numpy as np\nnp.random.seed(0)\nnp.x = 1\nfor i, b in l: s += b\nwith open(p) as file: t = file.read()", "s t"),
        ("model.fit(x)\nprint(y.mean())\ndf['a'] = z.sum()\ntrain(w)", "model df"),
        ("def helper(a):\n  a.b = 1\n  return [q for q in a]\n_ = helper(v)\n_hidden = 1", "helper"),
        ("a = b = 1\ndel a", "b"),
        ("try:\n  q = 1\nexcept KeyError as e: pass", "q"),
        ("for i in l: pass\ni = f(i)", "i"),
    ],
)
def test_what_a_person_expects_to_have_afterwards(code: str, results: str) -> None:
    found = analyse(code)
    assert found.results == names(results)
    assert found.results <= found.writes | found.changes


@pytest.mark.parametrize(("code", "line"), [("x = 1\nif 1\n", 2), ("return 3", 1), ("f(", 1)])
def test_a_cell_that_is_not_python_names_the_line(code: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"line {line} of the cell is not Python"):
        analyse(code)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A notebook's namespace with a few definitions."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    code = """
K = 1
big = list(range(10))
def h(): return K
def g(): return h()
class Base:
    def m(self): return g()
class C(Base):
    size = property(lambda self: big)
    @staticmethod
    def s(): return unknown
c = C()
def outer():
    x = h
    def inner(): return x()
    return inner
closure = outer()
"""
    exec(code, module.__dict__)
    return module.__dict__


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("h()", "h K"),
        ("g()", "g h K"),
        ("c.m()", "c g h K big"),
        ("closure()", "closure K"),  # h itself goes along with the closure
        ("def own(): return big", "big"),
        ("K = 2\nprint(K)", ""),
        ("In, Out, _, __name__, get_ipython()", ""),
    ],
)
def test_inputs_follow_functions_classes_and_instances(main: dict[str, Any], code: str, expected: str) -> None:
    assert set(inputs(code, main | {"In": [], "Out": {}, "_": 3, "get_ipython": print})) - {"C"} == names(expected)


def test_inputs_look_into_containers_and_partials(main: dict[str, Any]) -> None:
    assert globals_read([{"x": main["g"]}]) == {"h"}
    assert globals_read(partial(main["h"])) == {"K"}
    assert globals_read(test_inputs_look_into_containers_and_partials) == frozenset()  # a module's function: travels by name
