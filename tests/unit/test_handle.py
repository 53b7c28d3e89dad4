"""Handles: uids that never meet, names that people can say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.handle import Handle, as_name

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def test_uids_are_twelve_hexadecimal_digits_and_differ() -> None:
    uids = {Handle.new("local").uid for _ in range(200)}
    assert len(uids) == 200
    assert all(re.fullmatch("[0-9a-f]{12}", uid) for uid in uids)


def test_a_taken_name_is_not_given_again_even_when_all_animals_are_out() -> None:
    taken: set[str] = set()
    for _ in range(200):
        taken.add(name := Handle.new("local", taken).name)
        assert DNS_LABEL.fullmatch(name)
    assert len(taken) == 200
    assert any(name.endswith("-2") for name in taken)


def test_a_label_is_the_name_with_a_number_if_need_be() -> None:
    assert Handle.new("local", label="Train 7B").name == "train-7b"
    assert Handle.new("local", {"train-7b", "train-7b-2"}, "Train 7B").name == "train-7b-3"


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Résumé 7B!", "r-sum-7b"),
        ("fox", "fox"),
        ("--a--", "a"),
        ("", "cluster"),
        ("日本", "cluster"),
        ("x" * 40, "x" * 30),
        ("a" * 29 + " b", "a" * 29),
        ("$(rm -rf /)\n", "rm-rf"),
    ],
)
def test_labels_as_names(label: str, name: str) -> None:
    assert as_name(label) == name


@given(st.text())
def test_any_label_becomes_a_dns_label(label: str) -> None:
    name = as_name(label)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= 30
