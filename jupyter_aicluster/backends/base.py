"""Backend: who grants GPUs. One contract, one test suite (`jupyter_aicluster.testing.contract`), fakes included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from jupyter_aicluster.handle import Handle
from jupyter_aicluster.options import Options
from jupyter_aicluster.plan import Availability, Inventory, Plan
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Observation


@dataclass(frozen=True, slots=True)
class Dialer:
    """How to reach a hub from here: base URL and headers. The certificate and token are in the run folder."""

    base_url: str  # https://host:port, no slash at the end
    via: str = "tcp"  # tcp | apiserver | port-forward | srun: for messages


class Backend(ABC):
    """One scheduler as seen by one user. Methods are called from one asyncio loop; none may block it.

    A network or controller fault in `observe` is `Word.UNKNOWN` for the handles it concerns, never an exception
    for all; elsewhere it is `BackendUnavailable` or `SubmitError` with a hint.
    """

    name: ClassVar[str]
    poll_s: ClassVar[tuple[float, float]] = (5.0, 60.0)  # how often to observe: while things change, and when nothing does

    @classmethod
    @abstractmethod
    def from_options(cls, options: Options) -> Self:
        """Made by name, through the entry point group ``jupyter_aicluster.backends``. No I/O."""

    @abstractmethod
    async def available(self) -> Availability:
        """Whether this backend can be used from here, or what is missing and the fix."""

    @abstractmethod
    async def inventory(self) -> Inventory:
        """Partitions or queues with GPU types, totals and free counts, as of now."""

    @abstractmethod
    def plan(self, spec: ClusterSpec, inventory: Inventory) -> Plan:
        """Pure: what would be sent and whether it fits. Never raises for a request that does not fit: `Fit.NEVER` says so."""

    @abstractmethod
    async def submit(self, plan: Plan, handle: Handle, run: RunDir) -> None:
        """Send it. The uid is already recorded and the run folder complete: a crash half-way leaves enough for find() and cancel().

        Submitting the same handle twice is an error of the caller, not detected here. Raises `SubmitError`.
        """

    @abstractmethod
    async def observe(self, handles: Iterable[Handle]) -> Mapping[Handle, Observation]:
        """All of a user's clusters in one scheduler call. Every handle asked for is a key of the answer."""

    @abstractmethod
    async def cancel(self, handle: Handle) -> None:
        """Give the GPUs back, whatever state the request is in. Idempotent; unknown handles are fine."""

    @abstractmethod
    async def find(self) -> list[Handle]:
        """Everything of mine that the scheduler still holds, by label or job name, without our records."""

    @abstractmethod
    async def connect(self, handle: Handle) -> Dialer:
        """How to reach the hub from here. Raises `HubUnreachable` while there is none."""
