"""The one error tree. Every error says what happened, shows its evidence and names what to do.

An error is shown to a data scientist in a notebook cell, so its text is three short parts:
*what happened*, *evidence* (a scheduler's or a node's own words) and *a hint*, usually a line to paste.
"""

from __future__ import annotations


class AIClusterError(Exception):
    """Base of every error this package raises on purpose.

    ``submitted`` is False where the scheduler was not asked for anything: the text then says so.
    """

    def __init__(self, what: str, *, hint: str, evidence: str = "", submitted: bool = True) -> None:
        super().__init__(what)
        self.what = what
        self.evidence = evidence.strip()
        self.hint = hint
        self.submitted = submitted

    def __str__(self) -> str:
        lines = [self.what]
        if self.evidence:
            lines += [f"  {line}" for line in self.evidence.splitlines()]
        lines.append(f"→ {self.hint}")
        if not self.submitted:
            lines.append("Nothing was submitted.")
        return "\n".join(lines)


class UsageError(AIClusterError):
    """A flag, a verb or a value that cannot be understood. Nothing was submitted."""

    def __init__(self, what: str, *, hint: str, evidence: str = "") -> None:
        super().__init__(what, hint=hint, evidence=evidence, submitted=False)


class SpecError(UsageError):
    """A request that contradicts itself (17 GPUs on 4 nodes) or an administrator's bounds."""


class NeverFits(UsageError):
    """A request that no waiting will satisfy on this backend (24 GPUs, this machine has 16)."""


class BackendUnavailable(UsageError):
    """No such backend, or its scheduler does not answer from here."""


class ShipError(UsageError):
    """An input of the cell cannot travel: too large, or it cannot be pickled."""


class NameMissing(UsageError):
    """The cell reads a name that exists neither here nor on the cluster."""


class NameConflict(AIClusterError):
    """A name was changed here and on the cluster since it last travelled. The cell did not run."""


class SubmitError(AIClusterError):
    """The scheduler refused the submission."""


class NotFound(AIClusterError):
    """No cluster (or cell run, or value) of that name."""


class HubUnreachable(AIClusterError):
    """The cluster's hub does not answer. Says nothing about whether the cluster lives."""


class ProtocolSkew(AIClusterError):
    """Client and hub speak different protocol versions."""


class ClusterEnded(AIClusterError):
    """The cluster is over: stopped, out of time, failed, or never completed (a gate timed out)."""


class CellFailed(AIClusterError):
    """A cell run could not be carried out (driver lost, cluster gone): not the user's exception."""
