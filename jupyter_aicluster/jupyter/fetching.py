"""``%gpujob fetch``: variables that stayed on the cluster, brought here because somebody asked for them."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_aicluster.errors import NotFound
from jupyter_aicluster.jupyter.following import FirstInterrupt, follow
from jupyter_aicluster.jupyter.held import Held
from jupyter_aicluster.jupyter.notebook import Notebook
from jupyter_aicluster.protocol import CellRequest
from jupyter_aicluster.stubs import RemoteValue

_ANY_SIZE = 1 << 62


def fetch_stored(notebook: Notebook, names: Sequence[str]) -> list[str]:
    """Put the values of those names here that are a `RemoteValue`; which they were."""
    space = notebook.shell.user_ns
    stored = {name: value for name in names if isinstance(value := space.get(name), RemoteValue)}
    for name, value in stored.items():
        space[name] = value.fetch()
        cell_id = value.key.rpartition(".")[0]
        for held in notebook.living():
            if held.travelled.since([name]).get(name) == cell_id:  # its driver has the same: no need to send it there
                held.travelled.note(cell_id, {name: space[name]})
    return list(stored)


def fetch_from_driver(notebook: Notebook, held: Held, names: Sequence[str]) -> None:
    """Bring back what the session's driver has under those names. Raises `NotFound`. The GPUs stay as long as they would have."""
    from jupyter_aicluster.cells import new_cell_id

    there = held.cluster.snapshot().get("sessions", {}).get(held.session, {}).get("names", {})
    if missing := [name for name in names if name not in there]:
        raise NotFound(f"{held.name} has no variable {missing[0]!r} of this notebook", hint="%gpujob vars shows what is there")
    keep_s = held.keep_s
    stay_s = keep_s or notebook.options().hold_s
    request = CellRequest(
        cell_id=new_cell_id(),
        session=held.session,
        code="",
        filename="<fetch>",
        outputs=tuple(names),
        theirs=tuple(names),
        after_success_s=stay_s,
        after_failure_s=stay_s,
        label=f"fetch {', '.join(names)}",
        max_output_bytes=_ANY_SIZE,
    )
    with FirstInterrupt() as pressed:
        run = held.cluster.cell(request, None)
        held.sent(request, {})
        board = held.board(notebook.shell, run.cell_id, (), names)
        board.show()
    held.keep_s = stay_s  # it is not a job that gives back when it is done
    try:
        follow(notebook.shell, held, run, board, bool(pressed))
    finally:
        held.keep_s = keep_s
