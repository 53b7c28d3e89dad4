"""``%gpujob VERB``: one function each."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jupyter_aicluster.errors import NotFound, UsageError
from jupyter_aicluster.jupyter.cell_options import CellOptions
from jupyter_aicluster.jupyter.flags import FLAGS
from jupyter_aicluster.jupyter.following import follow, wait_ready
from jupyter_aicluster.jupyter.held import Held
from jupyter_aicluster.jupyter.notebook import Notebook
from jupyter_aicluster.jupyter.parse import Verb
from jupyter_aicluster.protocol import CellPhase
from jupyter_aicluster.rundir import RunDir, read_json
from jupyter_aicluster.state import State
from jupyter_aicluster.units import format_duration, format_size

if TYPE_CHECKING:
    from jupyter_aicluster.options import Options
    from jupyter_aicluster.plan import Availability, Plan, Pool
    from jupyter_aicluster.store import Record

LOG_TAIL_BYTES = 20_000


def overview(notebook: Notebook, verb: Verb) -> None:
    """The bare magic: my clusters, what is free, a cell to paste."""
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.loop import background

    options = notebook.options()
    living = [record for record in Cluster.list(options=options) if not record.status.ended]
    _say(table(living, time.time()) if living else "No clusters.")
    for name, pool in background.run(_pools(options)):
        free = "?" if pool.free is None else pool.free
        kind = f"{pool.gpu_type} " if pool.gpu_type else ""
        _say(f"{name}: {free} of {pool.total} {'simulated ' if pool.simulated else ''}{kind}GPUs free")
    _say("\nA cell to paste:\n\n%%gpujob --gpus 2 -t 10m\nimport ray\nray.cluster_resources()")


def up(notebook: Notebook, verb: Verb) -> None:
    held = notebook.ask(verb.options, keep_s=float(verb.options.keep_s or notebook.options().keep_s))
    wait_ready(held, held.board(notebook.shell, ""))


def down(notebook: Notebook, verb: Verb) -> None:
    held = notebook.find(verb.cluster)
    held.cluster.stop()
    _say(f"{held.name}: {'its GPUs are back' if held.cluster.status.ended else 'giving its GPUs back'}")


def plan(notebook: Notebook, verb: Verb) -> None:
    show_plan(notebook, verb.options)


def show_plan(notebook: Notebook, wanted: CellOptions) -> None:
    """What a cell or verb with these options would do; nothing is submitted."""
    from jupyter_aicluster.cluster import Cluster

    if wanted.spec is None or not wanted.new:
        held = notebook.fitting(wanted)
        if held is not None:
            _say(
                f"It would run on {held.name} ({held.cluster.spec.gpus} GPUs, {held.cluster.status.state}). --new asks for another cluster."
            )
            return
    if wanted.spec is None:
        raise UsageError("how many GPUs?", hint="--gpus is never guessed: add --gpus N")
    options = notebook.options()
    _say(plan_text(Cluster.plan(wanted.spec, backend=wanted.backend or options.backend, options=options)))


def plan_text(found: Plan) -> str:
    """The plan for people: whether it fits, what was guessed, and exactly what would be sent."""
    simulated = " simulated" if found.simulated else ""
    lines = [
        f"{found.spec.gpus}{simulated} GPU{'s' if found.spec.gpus != 1 else ''} from {found.backend}: "
        + ("one node" if found.nodes == 1 else f"{found.nodes} nodes with {found.gpus_per_node} each"),
        f"{_FITS.get(str(found.fit), 'Unknown')}: {found.because}",
    ]
    lines += [f"{guess.text} ({guess.flag} changes it)" for guess in found.guesses]
    lines += [f"{flag}: {found.backend} does not know it, left out" for flag in found.skipped]
    return "\n".join([*lines, "", found.text, "", "Nothing was submitted."])


_FITS = {"now": "Fits now", "waits": "Will wait", "never": "Never fits", "unknown": "Not known whether it fits"}


def list_(notebook: Notebook, verb: Verb) -> None:
    from jupyter_aicluster.cluster import Cluster

    records = Cluster.list(options=notebook.options())
    if verb.cluster is not None:
        records = [record for record in records if verb.cluster in (record.handle.name, record.handle.uid)]
        if not records:
            raise NotFound(f"no cluster called {verb.cluster!r}", hint="%gpujob list shows all")
    _say(table(records, time.time()) if records else "No clusters.")


def table(records: Sequence[Record], now_s: float) -> str:
    """One line a cluster, newest first: name, GPUs, where, state, since when, why."""
    rows = [("NAME", "GPUS", "BACKEND", "STATE", "SINCE", "")]
    for record in records:
        status, gpus = record.status, f"{record.spec.gpus}{' sim' if record.simulated else ''}"
        why = status.end.cause if status.end else status.observation.reason
        since = format_duration(now_s - (status.end.ended_s if status.end else record.created_s))
        rows.append((record.handle.name, gpus, record.handle.backend, str(status.state), since, why))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip() for row in rows)


def use(notebook: Notebook, verb: Verb) -> None:
    held = notebook.find(verb.cluster)
    notebook.use(held)
    _say(f"Cells of this notebook now run on {held.name} ({held.cluster.spec.gpus} GPUs) where it satisfies them.")


def attach(notebook: Notebook, verb: Verb) -> None:
    """Show it again, whatever it does; follow its latest cell run, and bring back what that left, unless this was done here already."""
    held = notebook.adopt(verb.cluster)
    cell_id = _latest_cell(held)
    board = held.board(notebook.shell, cell_id or "")
    board.show()
    if cell_id is None or cell_id in held.seen:
        board.rest()
    else:
        follow(notebook.shell, held, held.cluster.run_of(cell_id), board)


def logs(notebook: Notebook, verb: Verb) -> None:
    """The end of one stream; which one is said first, with what else there is."""
    held = notebook.find(verb.cluster, ended=True)
    sizes = {(int(stream["node"]), str(stream["stream"])): int(stream["size"]) for stream in held.cluster.streams()}
    wanted = [key for key in sizes if verb.node in (None, key[0]) and verb.stream in (None, key[1])]
    if not wanted:
        there = ", ".join(f"--node {node} --stream {name}" for node, name in sizes) or "nothing yet"
        raise NotFound(f"{held.name} has no such log", hint=f"there is: {there}")
    chosen = next((key for key in wanted if key[1].startswith("driver")), wanted[0])
    text = held.cluster.logs(*chosen, max(0, sizes[chosen] - LOG_TAIL_BYTES))
    others = ", ".join(f"--node {node} --stream {name}" for node, name in sizes if (node, name) != chosen)
    _say(
        f"{held.name}, node {chosen[0]}, {chosen[1]}, the end of {format_size(sizes[chosen])}" + (f" (others: {others})" if others else "")
    )
    _say(text.decode(errors="replace").rstrip("\n"))


def interrupt(notebook: Notebook, verb: Verb) -> None:
    held = notebook.find(verb.cluster)
    cell_id = _running_cell(held)
    if cell_id is None:
        raise NotFound(f"no cell runs on {held.name}", hint=f"%gpujob down {held.name} gives its GPUs back")
    held.cluster.interrupt(cell_id)
    _say(f"{held.name}: interrupted")


def keep(notebook: Notebook, verb: Verb) -> None:
    held = notebook.find(verb.cluster)
    seconds = float(verb.duration_s or notebook.options().keep_s)
    held.cluster.keep(seconds)
    held.keep_s = seconds
    _say(f"{held.name} stays until nothing has used it for {format_duration(seconds)}")


def reset(notebook: Notebook, verb: Verb) -> None:
    held = notebook.find(verb.cluster)
    held.cluster.reset(held.session)
    held.forget()
    _say(f"{held.name}: this notebook's variables there are gone, the GPUs stay")


def vars_(notebook: Notebook, verb: Verb) -> None:
    """What this notebook's session has on the cluster, as of the end of its latest cell run."""
    held = notebook.find(verb.cluster)
    found = held.cluster.snapshot().get("sessions", {}).get(held.session, {}).get("names", {})
    rows = [("NAME", "TYPE", "SIZE"), *((name, kind, format_size(size)) for name, (kind, size) in found.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = ["  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2]]) for row in rows]
    _say("\n".join(lines) if found else f"{held.name} has no variables of this notebook.")


def fetch(notebook: Notebook, verb: Verb) -> None:
    """Put variables of the cluster here: from its storage where they lie there, also when it has ended; else from its driver."""
    from jupyter_aicluster.jupyter.fetching import fetch_from_driver, fetch_stored

    stored = fetch_stored(notebook, verb.names)
    if rest := [name for name in verb.names if name not in stored]:
        fetch_from_driver(notebook, notebook.find(verb.cluster), rest)


def defaults(notebook: Notebook, verb: Verb) -> None:
    if verb.clear:
        notebook.defaults.clear()
    notebook.defaults.update(verb.given)
    shown = {flag.key: flag.name for flag in FLAGS.values()}
    _say("Defaults of this notebook: " + (", ".join(f"{shown[key]} {value}" for key, value in notebook.defaults.items()) or "none"))


def doctor(notebook: Notebook, verb: Verb) -> None:
    _say("\n".join(doctor_lines(notebook.options())))


def doctor_lines(options: Options) -> list[str]:
    """What works from here, and the fix for what does not. Thin for now."""
    from jupyter_aicluster.loop import background

    lines = [f"Python {sys.version.split()[0]} · home {options.home}"]
    for name, why in (("ray", "runs the cells"), ("aiohttp", "talks to clusters"), ("anywidget", "shows the card")):
        lines.append(f"{'ok' if importlib.util.find_spec(name) else 'missing':8}{name} ({why})")
    if sys.dont_write_bytecode:
        lines.append("slow    PYTHONDONTWRITEBYTECODE is set: every Ray process compiles its modules again; unset it")
    for name, found in background.run(_available(options)):
        lines.append(f"{'ok' if found.ok else 'missing':8}{name}" + ("" if found.ok else f": {found.reason}. {found.hint}"))
    return lines


async def _available(options: Options) -> list[tuple[str, Availability]]:
    from jupyter_aicluster.backends import registry
    from jupyter_aicluster.clusters import clusters_of

    return [(name, await clusters_of(options).backend(name).available()) for name in registry.names()]


async def _pools(options: Options) -> list[tuple[str, Pool]]:
    """What every backend that answers has."""
    from jupyter_aicluster.clusters import clusters_of

    answering = [name for name, found in await _available(options) if found.ok]
    return [(name, pool) for name in answering for pool in (await clusters_of(options).backend(name).inventory()).pools]


def _running_cell(held: Held) -> str | None:
    if held.cluster.status.state is not State.READY:
        return None
    cells = held.cluster.snapshot().get("cells", {})
    return next((cell_id for cell_id, report in cells.items() if not CellPhase(report["phase"]).over), None)


def _latest_cell(held: Held) -> str | None:
    """The cell run that runs, waits or was the last one; None: no cell ever."""
    cluster = held.cluster
    if cluster.status.ended:
        report = held.hear_out()
        return report.cell_id if report else None
    if cluster.status.state is State.READY:
        cells = cluster.snapshot().get("cells", {})
        return _running_cell(held) or next(reversed(cells), None)
    submission = read_json(RunDir(cluster.record.run).submission) or {}
    return (submission.get("cell") or {}).get("cell_id")


def _say(text: str) -> None:
    print(text)  # noqa: T201 - the answer of a magic


VERBS: dict[str, Callable[[Notebook, Verb], None]] = {
    "": overview,
    "up": up,
    "down": down,
    "plan": plan,
    "list": list_,
    "use": use,
    "attach": attach,
    "logs": logs,
    "interrupt": interrupt,
    "keep": keep,
    "reset": reset,
    "vars": vars_,
    "fetch": fetch,
    "defaults": defaults,
    "doctor": doctor,
}
