from __future__ import annotations

import threading
from typing import Any

import numpy as np

from jupyter_aicluster.agent.namespace import Before


def changed(code: str, names: str, assigned: str = "", **namespace: Any) -> set[str]:
    before = Before.look(names.split(), namespace)
    exec(code, namespace)
    return set(before.changed(names.split(), namespace, assigned.split()))


def test_new_and_replaced_names_come_back() -> None:
    assert changed("x = 1\ny = [2]", "x y z", y=[2], z=3) == {"x", "y"}


def test_what_was_changed_in_place_comes_back() -> None:
    start: dict[str, Any] = {"a": [1], "b": [1], "array": np.zeros(1_000_000), "same": np.zeros(1_000_000), "d": {"k": {}}}
    assert changed("a.append(2)\narray[-1] = 1e-9\nd['k']['x'] = 1", "a b array same d", **start) == {"a", "array", "d"}


def test_an_assigned_name_comes_back_even_if_it_is_the_same_object() -> None:
    assert changed("x = 1", "x y", assigned="x", x=1, y=1) == {"x"}
    assert changed("x = 1", "x y", x=1, y=1) == set()


def test_names_that_were_deleted_or_not_asked_for_stay() -> None:
    assert changed("del x\nz = 1", "x", x=1) == set()


def test_what_cannot_be_compared_counts_when_it_is_another_object() -> None:
    lock = threading.Lock()
    assert changed("pass", "lock", lock=lock) == set()
    assert changed("import threading; lock = threading.Lock()", "lock", lock=lock) == {"lock"}
