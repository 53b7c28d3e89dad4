"""ClusterSpec: what contradicts itself is refused, what is asked is met."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_aicluster.errors import SpecError
from jupyter_aicluster.spec import ClusterSpec


@pytest.mark.parametrize("name", ["gpus", "nodes", "gpus_per_node", "cpus_per_node", "mem_per_node_bytes", "time_s"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_counts_are_whole_and_positive(name: str, value: object) -> None:
    wanted: dict[str, Any] = {"gpus": 8} | {name: value}
    with pytest.raises(SpecError, match=name):
        ClusterSpec(**wanted)


@pytest.mark.parametrize(
    ("wanted", "mended"),
    [
        ({"gpus": 17, "nodes": 4}, "--gpus 20 -N 4"),
        ({"gpus": 3, "gpus_per_node": 2}, "--gpus 4 --gpus-per-node 2"),
        ({"gpus": 2, "gpus_per_node": 8}, "--gpus 8 --gpus-per-node 8"),
        ({"gpus": 8, "nodes": 2, "gpus_per_node": 2}, "two of --gpus"),
    ],
)
def test_a_contradiction_comes_with_a_line_that_is_none(wanted: dict[str, Any], mended: str) -> None:
    with pytest.raises(SpecError) as caught:
        ClusterSpec(**wanted)
    assert mended in caught.value.hint
    assert not caught.value.submitted


@given(st.integers(1, 600), st.integers(1, 16))
def test_a_shape_is_equal_whole_and_as_few_nodes_as_possible(gpus: int, most: int) -> None:
    nodes, per_node = ClusterSpec(gpus=gpus).shape(most)
    assert nodes * per_node == gpus
    assert per_node <= most
    assert all(gpus % fewer or gpus // fewer > most for fewer in range(1, nodes))


def test_a_shape_that_was_said_is_kept() -> None:
    assert ClusterSpec(gpus=16, nodes=4).shape(8) == (4, 4)
    assert ClusterSpec(gpus=16, gpus_per_node=2).shape(8) == (8, 2)
    with pytest.raises(SpecError, match="without GPUs"):
        ClusterSpec(gpus=1).shape(0)


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    nodes, per_node = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    said = draw(st.sampled_from(["nothing", "nodes", "per_node"]))
    return ClusterSpec(
        gpus=nodes * per_node,
        nodes=nodes if said == "nodes" else None,
        gpus_per_node=per_node if said == "per_node" else None,
        gpu_type=draw(st.sampled_from([None, "h100", "a100"])),
        cpus_per_node=draw(st.none() | st.integers(1, 64)),
        mem_per_node_bytes=draw(st.none() | st.integers(1, 1 << 40)),
        time_s=draw(st.none() | st.integers(1, 10**6)),
        queue=draw(st.none() | st.text()),
        env=draw(st.lists(st.tuples(st.text(), st.text())).map(tuple)),
        pip=draw(st.lists(st.text()).map(tuple)),
        working_dir=draw(st.none() | st.text()),
        label=draw(st.none() | st.text()),
    )


@given(specs())
def test_a_spec_survives_its_record_and_newer_writers(spec: ClusterSpec) -> None:
    written = json.loads(json.dumps(spec.to_json()))
    assert ClusterSpec.from_json(written) == spec
    assert ClusterSpec.from_json(written | {"fabric": "from a later version"}) == spec


@given(specs())
def test_every_cluster_satisfies_its_own_requirement(spec: ClusterSpec) -> None:
    assert spec.satisfied_by(spec)
    assert ClusterSpec(gpus=1).satisfied_by(spec)


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ({"gpus": 16}, True),
        ({"gpus": 17}, False),
        ({"gpus": 8, "nodes": 2}, True),
        ({"gpus": 8, "nodes": 4}, False),
        ({"gpus": 8, "gpus_per_node": 8}, False),  # it was not said of that cluster, so it is not known to hold
        ({"gpus": 8, "gpu_type": "h100"}, True),
        ({"gpus": 8, "gpu_type": "a100"}, False),
        ({"gpus": 8, "cpus_per_node": 8}, True),
        ({"gpus": 8, "cpus_per_node": 9}, False),
        ({"gpus": 8, "mem_per_node_bytes": 1}, False),
        ({"gpus": 8, "env": (("A", "1"),)}, True),
        ({"gpus": 8, "env": (("A", "2"),)}, False),
        ({"gpus": 8, "pip": ("einops",)}, False),
        ({"gpus": 8, "working_dir": "/elsewhere"}, False),
        ({"gpus": 8, "queue": "long", "account": "x", "priority": 5}, True),  # routing is about getting there
    ],
)
def test_whether_a_held_cluster_meets_a_requirement(wanted: dict[str, Any], met: bool) -> None:
    held = ClusterSpec(gpus=16, nodes=2, gpu_type="h100", cpus_per_node=8, env=(("A", "1"),), working_dir="/here")
    assert ClusterSpec(**wanted).satisfied_by(held) is met


def test_it_is_frozen_and_checked_again_when_replaced() -> None:
    spec = ClusterSpec(gpus=8)
    with pytest.raises(SpecError):
        replace(spec, nodes=3)
    assert {field.name for field in fields(spec)} == set(spec.to_json())
