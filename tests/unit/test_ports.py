"""Port blocks: disjoint, outside the ephemeral range, and nobody else's while they are claimed. (cases.md A1, A2)"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jupyter_aicluster.agent.ports import _SIZE, COMPONENTS, NoPorts, PortBlock, blocks, claim_block, ephemeral_range, taken


@contextmanager
def claimed(*avoid: int, ephemeral: range | None = None) -> Iterator[PortBlock]:
    block = claim_block(avoid, ephemeral)
    try:
        yield block
    finally:
        block.release()


def ports_of(block: PortBlock) -> set[int]:
    return {block.base} | {block[component] for component in COMPONENTS}


def bind(port: int, host: str = "127.0.0.1", option: int | None = None) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if option is not None:
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


def test_every_component_has_a_port_of_its_own_within_the_block() -> None:
    with claimed() as block:
        assert len(ports_of(block)) == len(COMPONENTS) + 1
        assert ports_of(block) <= set(range(block.base, block.base + _SIZE))


def test_gangs_on_one_machine_are_disjoint_and_use_no_well_known_port() -> None:
    with ExitStack() as stack:
        held = [ports_of(stack.enter_context(claimed())) for _ in range(5)]
        every = set().union(*held)
        assert len(every) == sum(map(len, held))
        assert not every & ({6379, 8265, 10001, 8076, 44217, 52365} | set(ephemeral_range()) | set(range(10_002, 20_000)))


@pytest.mark.parametrize("host", ["127.0.0.1", "", "127.0.0.2"])
@pytest.mark.parametrize("option", [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_nobody_else_can_bind_the_base(host: str, option: int | None) -> None:
    with claimed() as block, pytest.raises(OSError, match="in use"):
        bind(block.base, host, option)


def test_a_released_claim_can_be_claimed_again() -> None:
    with claimed() as block:
        base = block.base
        with claimed() as other:
            assert other.base != base
    with claimed() as again:
        assert again.base == base


def test_the_claim_is_not_inherited_by_ray() -> None:
    with claimed() as block:
        assert not block.claim.get_inheritable()


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_block_with_one_taken_port_is_skipped_and_left_unclaimed(component: str, host: str) -> None:
    with claimed() as block:
        base, port = block.base, block[component]
    with bind(port, host), claimed() as other:
        assert other.base != base
        bind(base).close()  # not held by a claim that was given up
    with claimed() as block:
        assert block.base == base


def test_bad_blocks_are_avoided() -> None:
    with claimed() as block:
        first = block.base
    with claimed(first) as other:
        assert other.base != first


def test_no_block_left_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NoPorts) as caught:
        claim_block(blocks(ephemeral_range()))
    assert "stop a cluster" in caught.value.hint


@settings(max_examples=30)
@given(st.integers(1, 65_535), st.integers(1, 65_535))
def test_blocks_are_disjoint_and_outside_the_ephemeral_range_where_there_is_room(low: int, high: int) -> None:
    assume(low <= high)
    ephemeral = range(low, high + 1)
    found = blocks(ephemeral)
    assert found
    assert all(later - earlier >= _SIZE for earlier, later in pairwise(found))
    assert found[-1] + _SIZE <= 65_536
    assert not any(23_000 <= port < 24_000 for base in found for port in range(base, base + _SIZE))  # Ray Client's own
    inside = [base for base in found if base < ephemeral.stop and ephemeral.start < base + _SIZE]
    assert inside in ([], found)  # none; or all, where the range leaves no room


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("32768\t60999\n", range(32_768, 61_000)),
        ("1024 65535", range(1024, 65_536)),
        ("", ephemeral_range()),
        ("a b", range(32_768, 61_000)),
        ("7", range(32_768, 61_000)),
    ],
)
def test_the_kernels_range(text: str, found: range) -> None:
    assert ephemeral_range(text) == found


@pytest.mark.parametrize(
    ("log", "clash"),
    [
        ("ValueError: Ray component worker_ports is trying to use a port number 53058 that is used by other components.", True),
        ("OSError: [Errno 98] Address already in use", True),
        ("Failed to start GCS: address already in use", True),
        ("ConnectionError: Unable to connect to GCS at 10.249.16.183:6379", False),
        ("", False),
    ],
)
def test_a_clash_is_recognised(log: str, clash: bool) -> None:
    assert taken(log) is clash
