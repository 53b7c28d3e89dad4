"""The driver's connection to Ray, and the few places where Ray's private parts are used."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SOFT_S = 2.0
WHOLE_S = 10.0
_FIRST_RESULT = (1).to_bytes(4, "little")  # a task's id followed by this is its first result's
_PATIENCE_S = 5.0  # how long the ranks' GPUs may be held by others before a word is said
_NO_ACTOR = b"\xff" * 12  # in the id of a task that no actor runs
_log = logging.getLogger(__name__)


class RaySide:
    """One connection for the life of the process: `ray.init` and `ray.shutdown` in a cell do nothing."""

    def __init__(self, ray: Any, context: Any) -> None:
        self._ray = ray
        self._waiting: threading.Event | None = None  # set: do not wait for the ranks' GPUs any longer
        self._held: Any = None
        ray.init = lambda *args, **kwargs: context
        ray.shutdown = lambda *args, **kwargs: None

    @classmethod
    def connect(cls) -> RaySide:
        """Connect to the cluster named by ``RAY_ADDRESS``, with the token in ``RAY_AUTH_TOKEN_PATH``."""
        os.environ.setdefault("RAY_get_check_signal_interval_milliseconds", "100")  # how soon ray.get notices an interrupt
        import ray

        context = ray.init(
            address=os.environ["RAY_ADDRESS"],
            namespace=os.environ.get("AICLUSTER_UID"),
            log_to_driver=False,
            ignore_reinit_error=True,
            configure_logging=False,
        )
        return cls(ray, context)

    def resources(self) -> dict[str, int]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return {"nodes": len(alive), "gpus": int(sum(node["Resources"].get("GPU", 0) for node in alive))}

    def wait_whole(self, nodes: int, gpus: int, timeout_s: float = WHOLE_S) -> str:
        """Wait until Ray counts what was granted: it learns of a raylet a moment after the raylet says that it is up.

        Empty, or a sentence on what differs still.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            have = self.resources()
            if have == {"nodes": nodes, "gpus": gpus}:
                return ""
            if time.monotonic() > deadline:
                return f"Ray counts {have['gpus']} GPUs on {have['nodes']} nodes; {gpus} on {nodes} were granted"
            time.sleep(0.02)

    def hold_gpus(self, nodes: int, gpus_per_node: int, held: Callable[[], None], say: Callable[[str], None]) -> None:
        """Take all GPUs in Ray's books, for as long as this process lives, and call ``held``. Does not block.

        Tasks and actors that have them are waited for; ``say`` is told who they are.
        """
        if self._held is not None:
            held()
            return
        self.give_up_waiting()
        self._waiting = threading.Event()
        arguments = (nodes, gpus_per_node, self._waiting, held, say)
        threading.Thread(target=self._hold, args=arguments, name="hold-gpus", daemon=True).start()

    def give_up_waiting(self) -> None:
        """Another cell runs now: GPUs that Ray has not given yet are not asked for any longer."""
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    def _hold(
        self, nodes: int, gpus_per_node: int, given_up: threading.Event, held: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        from ray.util.placement_group import placement_group, remove_placement_group

        bundles = [{"GPU": float(gpus_per_node), f"aicluster_node_{node}": 0.001} for node in range(nodes)]
        group = placement_group(bundles, strategy="STRICT_SPREAD", name="ranks of --spmd cells")
        began, told = time.monotonic(), False
        while not group.wait(timeout_seconds=0.5):
            if given_up.is_set():
                remove_placement_group(group)
                return
            if not told and time.monotonic() - began > _PATIENCE_S:
                told = True
                say(self._who_holds(nodes * gpus_per_node))
        self._held = group
        held()

    def _who_holds(self, gpus: int) -> str:
        free = self._ray.available_resources().get("GPU", 0)
        actors = [actor for actor in self._ray._private.state.actors().values() if actor["State"] == "ALIVE"]
        names = sorted({actor["Name"] or actor["ActorClassName"] for actor in actors})
        who = f"actors alive: {', '.join(names)}" if names else "tasks or the ranks of another notebook"
        return f"--spmd waits for its GPUs: {free:.0f} of {gpus} are free in Ray's books ({who})"

    @contextmanager
    def watching(self, say: Callable[[str], None]) -> Iterator[None]:
        """While a cell runs: where its tasks or actors wait for GPUs that the ranks hold, ``say`` is told so, once."""
        over = threading.Event()
        if self._held is not None:
            threading.Thread(target=self._watch, args=(over, say), name="gpu-watch", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, say: Callable[[str], None]) -> None:
        while not over.wait(_PATIENCE_S):
            if waiting := self._waiting_for_gpus():
                what = "A task or actor of this cell waits" if waiting == 1 else f"{waiting} tasks or actors of this cell wait"
                say(f"{what} for GPUs, and the ranks of --spmd cells hold all of them: %gpujob reset ends the ranks")
                return

    def _waiting_for_gpus(self) -> int:
        """How many requests with GPUs in them Ray cannot meet now. Best effort: where Ray has changed, 0."""
        try:
            from ray.autoscaler.v2.sdk import get_cluster_status

            demands = get_cluster_status(self._ray.get_runtime_context().gcs_address).resource_demands.ray_task_actor_demand
            return sum(entry.count for demand in demands for entry in demand.bundles_by_count if entry.bundle.get("GPU"))
        except Exception as error:  # noqa: BLE001 - boundary: a hint is not worth a failed cell
            _log.warning("cannot see what waits for GPUs: %r", error)
            return 0

    def stop_work(self, since_s: float) -> None:
        """Cancel the unfinished tasks that this process started, and kill the unnamed actors it made after ``since_s`` (Unix time).

        Tasks get a KeyboardInterrupt; the worker of one that has not ended within `SOFT_S` is killed. Best effort: the
        API is private, and a task that an actor of an earlier cell runs goes on.
        """
        try:
            self._stop_work(since_s)
        except Exception as error:  # noqa: BLE001 - boundary: an interrupt must end the cell whatever Ray does
            _log.warning("could not cancel everything: %r", error)

    def _stop_work(self, since_s: float) -> None:
        worker = self._ray._private.worker.global_worker.core_worker
        for actor_id, actor in self._ray._private.state.actors().items():
            mine = actor["JobID"] == self._ray.get_runtime_context().get_job_id()
            born_s = actor["StartTime"] / 1000 or since_s  # 0: it waits to be started
            if mine and actor["State"] != "DEAD" and not actor["Name"] and born_s >= since_s:
                worker.kill_actor(self._ray.ActorID.from_hex(actor_id), True)
        tasks = worker.get_pending_children_task_ids(worker.get_current_task_id())
        refs = [self._ray.ObjectRef(task.binary() + _FIRST_RESULT) for task in tasks if _NO_ACTOR in task.binary()]
        for ref in refs:
            self._ray.cancel(ref)
        stubborn = self._ray.wait(refs, num_returns=len(refs), timeout=SOFT_S)[1] if refs else []
        for ref in stubborn:
            self._ray.cancel(ref, force=True)
