"""The node program: one on every node, the parent of ``ray start`` and of drivers and ranks there, the same on all backends.

It lives outside Ray, so it still works when Ray does not. Every heartbeat's answer carries what the hub wants; a
separate task makes it so, because stopping Ray takes longer than a heartbeat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from jupyter_aicluster.agent.gpus import GpuReader, Gpus, visible_entries
from jupyter_aicluster.agent.lifeline import watch_lifeline
from jupyter_aicluster.agent.link import HubLink, NoHub
from jupyter_aicluster.agent.logs import Tailer
from jupyter_aicluster.agent.noderay import NodeRay
from jupyter_aicluster.agent.simgpus import SimulatedGpus, ray_env
from jupyter_aicluster.agent.workers import Drivers
from jupyter_aicluster.procs import TempDirRefused, kill_marked, node_tmp, private_tmp, remove_tmp
from jupyter_aicluster.protocol import BEAT_S, FENCE_S, Beat, GpuSample, Orders, RayState, Submission
from jupyter_aicluster.rundir import RunDir, read_json

SHIP_S = 0.2  # how often log files are looked at
EAGER_S = 0.2  # a heartbeat's period while the node waits for its hub, or for its turn to start Ray
APPLY_S = 0.05  # how often wanted and actual state are compared
SAMPLE_S = 1.0
LAST_WORDS_S = 3.0  # for the final log lines and the goodbye


class NodeProgram:
    def __init__(self, run: RunDir, submission: Submission, node: int) -> None:
        self.run, self.submission, self.node = run, submission, node
        self.boot = secrets.token_hex(4)
        self.host = socket.gethostname()
        self.temp = node_tmp(submission.uid, node)
        self.tailer = Tailer()
        holders = self.temp / "holders"
        self.ray = NodeRay(run, submission, node, self.temp, self.tailer, ray_env(holders) if submission.simulated else {})
        self.drivers = Drivers(run, submission, self.temp, self.tailer)
        entries = visible_entries()
        self.gpus: GpuReader = SimulatedGpus(entries, holders, drivers=self.drivers.pids) if submission.simulated else Gpus(entries)
        self._samples: list[GpuSample] = []
        self.orders = Orders(attempt=1)
        self.attempt = 1  # that of our Ray and drivers
        self.leaving = ""
        self.fence = asyncio.Event()  # set: end now
        self._beat_now = asyncio.Event()
        self._heard_s = time.monotonic()
        self._silence_s = submission.connect_timeout_s  # until it was heard once: it may still be starting

    def leave(self, why: str) -> None:
        """End this node's part, once; the first reason stands."""
        if not self.leaving:  # once: each time would be another beat without a pause
            self.leaving = why
            self.fence.set()
            self._beat_now.set()

    async def live(self) -> int:
        with suppress(TempDirRefused):  # Ray's start needs it too, and says so to the hub
            private_tmp(self.temp)
            self.gpus.start()
        async with HubLink(self.run) as link:
            applying = asyncio.create_task(self._apply(link))
            tasks = [applying, *(asyncio.create_task(work) for work in (self._beats(link), self._ship(link), self._sample()))]
            ended = asyncio.create_task(self.fence.wait())
            done, _ = await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ended}:  # none of the loops ends by itself: this is a fault of ours, and the log should say so
                print(f"node {self.node}: {task.get_name()} ended: {task.exception()!r}", file=sys.stderr, flush=True)
                self.leaving = self.leaving or f"its node program failed ({task.exception()!r})"
            applying.cancel()  # it would start again what is ended now
            await asyncio.wait([applying])
            if not self.orders.stop:  # said before the driver is stopped: its end is then not the cell's fault
                await self._say(link)
            await self._end_all()
            await self._ship_rest(link)
            if self.orders.stop:
                await self._say(link)
            for task in tasks:
                task.cancel()
        return 0

    # ---- heartbeats

    def _beat(self) -> Beat:
        return Beat(
            node=self.node,
            boot=self.boot,
            attempt=self.attempt,
            host=self.host,
            ray=self.ray.state,
            ray_error=self.ray.error,
            ray_address=self.ray.address,
            dashboard=self.ray.dashboard,
            client_server=self.ray.client_server,
            rendezvous=self.ray.rendezvous,
            coordinator=self.ray.coordinator,
            gpus=tuple(info.to_json() for info in self.gpus.infos()),
            samples=tuple(sample.to_json() for sample in self._samples),
            drivers=self.drivers.status(),
            leaving=self.leaving,
        )

    async def _say(self, link: HubLink) -> None:
        with suppress(NoHub):
            await link.post(f"/v1/nodes/{self.node}/beat", self._beat().to_json())

    async def _beats(self, link: HubLink) -> None:
        while True:
            try:
                answer = await link.post(f"/v1/nodes/{self.node}/beat", self._beat().to_json())
                self.orders = Orders.from_json(answer)
                self._heard_s, self._silence_s = time.monotonic(), FENCE_S
                if self.orders.stop:
                    self.leave("the cluster ends")
            except NoHub:
                if time.monotonic() - self._heard_s > self._silence_s:
                    self.leave(f"its hub was silent for {self._silence_s:.0f} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S if link.known and self.ray.state == RayState.UP else EAGER_S):
                    await self._beat_now.wait()
            self._beat_now.clear()

    async def _sample(self) -> None:
        while True:
            self._samples = await asyncio.to_thread(self.gpus.sample)
            await asyncio.sleep(SAMPLE_S)

    # ---- wanted and actual state

    async def _apply(self, link: HubLink) -> None:
        said = (RayState.ABSENT, "")
        while True:
            orders = self.orders
            if orders.attempt != self.attempt:
                await self._next_attempt(orders.attempt, link)
            if orders.ray:
                self.ray.start(orders.ray_address, self.attempt)
            self.ray.look()
            up = self.ray.state == RayState.UP
            self.drivers.apply(orders.drivers if up else {}, self.ray.address or orders.ray_address, self.attempt, orders.ranks)
            now = (RayState(self.ray.state), repr(self.drivers.status()))
            if now != said:  # news do not wait for the next beat
                said = now
                self._beat_now.set()
            await asyncio.sleep(APPLY_S)

    async def _next_attempt(self, attempt: int, link: HubLink) -> None:
        """All of this node's processes go; then everything starts from nothing."""
        await self.drivers.stop()
        await asyncio.to_thread(kill_marked, self.submission.uid, self.node)
        await self._ship_rest(link)
        self.ray.reset()
        self.tailer.forget()
        self.attempt = attempt

    async def _end_all(self) -> None:
        await self.drivers.stop()
        left = await asyncio.to_thread(kill_marked, self.submission.uid, self.node)
        if left:
            print(f"node {self.node}: processes {left} would not end", file=sys.stderr, flush=True)

    # ---- logs

    async def _ship(self, link: HubLink) -> None:
        while True:
            with suppress(NoHub):
                await self._ship_once(link)
            await asyncio.sleep(SHIP_S)

    async def _ship_rest(self, link: HubLink) -> None:
        """What processes that have ended wrote in the end."""
        self.ray.follow_workers(now=True)
        with suppress(TimeoutError, NoHub):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._ship_once(link)

    async def _ship_once(self, link: HubLink) -> None:
        attempt = self.attempt
        while True:
            self.ray.follow_workers()
            sent = False
            for stream, at, data in self.tailer.pending():
                answer = await link.post(f"/v1/nodes/{self.node}/logs/{stream}?attempt={attempt}&at={at}", data)
                if self.attempt != attempt:
                    return  # its files are others now: this answer is not about them
                self.tailer.acknowledge(stream, int(answer["have"]))
                sent = True
            if not sent:
                return


async def serve(run: RunDir, node: int) -> int:
    raw = read_json(run.submission)
    if raw is None:
        print(f"no submission in {run.path}", file=sys.stderr)
        return 2
    program = NodeProgram(run, Submission.from_json(raw), node)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, program.leave, "its scheduler ended it (SIGTERM)")
    loop.add_signal_handler(signal.SIGINT, program.leave, "it was interrupted (SIGINT)")
    watch_lifeline(lambda: program.leave("its supervisor was killed"))
    try:
        return await program.live()
    finally:
        program.gpus.close()
        remove_tmp(program.submission.uid, node)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="node", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    options = parser.parse_args(argv)
    os.umask(0o077)
    return asyncio.run(serve(RunDir(options.run), options.node))
