"""Readers of the event stream: woken by everything, slow ones get the newest live state."""

from __future__ import annotations

import asyncio

from jupyter_aicluster.agent.streams import Streams
from jupyter_aicluster.events import Event, Kind


def live(kind: Kind, time_s: float = 0.0, **data: object) -> Event:
    return Event(1, 0, time_s, kind, data)


async def test_a_new_reader_looks_at_once_then_waits_until_something_is_said() -> None:
    streams = Streams()
    stream = streams.open()
    assert await stream.wait(1.0)
    assert not await stream.wait(0.01)
    streams.say(Event(1, 7, 0.0, Kind.NOTICE, {}))  # journaled: it is read from the journal
    assert await stream.wait(1.0)
    assert stream.take_live() == []
    streams.wake()
    assert await stream.wait(1.0)


async def test_the_newest_reading_of_each_node_waits_for_a_slow_reader() -> None:
    streams = Streams()
    slow, gone = streams.open(), streams.open()
    streams.close(gone)
    for second in range(100):
        for node in (0, 1):
            streams.say(live(Kind.GPUS, second, node=node, samples=[second]))
    assert [(event.data["node"], event.time_s) for event in slow.take_live()] == [(0, 99), (1, 99)]
    assert slow.take_live() == []
    assert gone.take_live() == []


async def test_log_text_is_joined_by_stream_and_bounded() -> None:
    streams = Streams()
    slow = streams.open()
    for n in range(3):
        streams.say(live(Kind.LOG, n, node=0, stream="ray", offset=10 * n, text=f"line {n}\n"))
    streams.say(live(Kind.LOG, 9, node=1, stream="ray", offset=0, text="other\n"))
    first, second = slow.take_live()
    assert (first.data["text"], first.data["offset"], first.time_s) == ("line 0\nline 1\nline 2\n", 0, 2)
    assert second.data["text"] == "other\n"
    for _ in range(5000):
        streams.say(live(Kind.LOG, node=0, stream="ray", offset=0, text="xxxx\n"))
    (flood,) = slow.take_live()
    assert len(flood.data["text"]) == 8000


async def test_changed_and_all_closed() -> None:
    streams = Streams()
    stream = streams.open()
    waiting = asyncio.create_task(streams.all_closed())
    await asyncio.sleep(0)
    assert not waiting.done()
    streams.close(stream)
    async with asyncio.timeout(1):
        await waiting
    await streams.changed(0.01)  # nothing: it returns all the same
