"""The driver's connection to Ray, and the few places where Ray's private parts are used."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

_log = logging.getLogger(__name__)


class RaySide:
    """One connection for the life of the process: `ray.init` and `ray.shutdown` in a cell do nothing."""

    def __init__(self, ray: Any, context: Any) -> None:
        self._ray = ray
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

    def cancel_tasks(self) -> None:
        """Cancel the unfinished tasks that the interrupted cell has started. Best effort: the API is private."""
        with suppress(Exception):  # an interrupt must end the cell in any case
            worker = self._ray._private.worker.global_worker.core_worker
            for task in worker.get_pending_children_task_ids(worker.get_current_task_id()):
                first_result = self._ray.ObjectRef(task.binary() + (1).to_bytes(4, "little"))
                try:
                    self._ray.cancel(first_result)
                except (ValueError, TypeError) as error:  # a task of a synchronous actor
                    _log.warning("not cancelled: %s", error)
