"""``jupyter aicluster list|logs|stop|attach|enable|doctor``: clusters from a shell, whoever made them."""

# ruff: noqa: T201  # what a program prints

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_aicluster.errors import AIClusterError, UsageError
from jupyter_aicluster.jupyter.config import options
from jupyter_aicluster.rundir import read_json
from jupyter_aicluster.store import Record

_POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 an error that was explained on stderr, 2 not understood, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.act(arguments)
    except AIClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("jupyter aicluster", description="Clusters of GPUs from a shell.", allow_abbrev=False)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, act, text in (
        ("list", _list, "my clusters"),
        ("logs", _logs, "a log of a cluster"),
        ("stop", _stop, "give its GPUs back"),
        ("attach", _attach, "watch it until it ends (Ctrl-C leaves it running)"),
        ("enable", _enable, "make %%gpujob load by itself in every notebook of this user"),
        ("doctor", _doctor, "what works from here"),
    ):
        verb = verbs.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
        verb.set_defaults(act=act)
        if name in ("logs", "stop", "attach"):
            verb.add_argument("name", help="name or uid")
        if name == "list":
            verb.add_argument("--json", action="store_true", help="one JSON object a line")
        if name == "logs":
            verb.add_argument("--node", type=int, help="default: every node")
            verb.add_argument("--stream", help="default: every stream")
            verb.add_argument("-f", "--follow", action="store_true", help="until the cluster ends")
    return parser


def _list(arguments: argparse.Namespace) -> None:
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.jupyter.verbs import table

    records = Cluster.list(options=options())
    if arguments.json:
        print("".join(json.dumps(_as_json(record)) + "\n" for record in records), end="")
    else:
        print(table(records, time.time()) if records else "No clusters.")


def _as_json(record: Record) -> dict[str, Any]:
    """For scripts: no addresses, no tokens, no environment."""
    status = record.status
    return {
        "uid": record.handle.uid,
        "name": record.handle.name,
        "backend": record.handle.backend,
        "gpus": record.spec.gpus,
        "nodes": record.nodes,
        "simulated": record.simulated,
        "state": str(status.state),
        "attempt": status.attempt,
        "created_s": record.created_s,
        "reason": status.end.cause if status.end else status.observation.reason,
        "ending": str(status.end.ending) if status.end else None,
    }


def _logs(arguments: argparse.Namespace) -> None:
    """Raw bytes; with several streams each is preceded by a line with its name."""
    from jupyter_aicluster.cluster import Cluster

    cluster = Cluster.attach(arguments.name, options=options())
    at: dict[tuple[int, str], int] = {}
    last: tuple[int, str] | None = None
    while True:
        ended = cluster.status.ended
        for stream in cluster.streams():
            key = (int(stream["node"]), str(stream["stream"]))
            if arguments.node not in (None, key[0]) or arguments.stream not in (None, key[1]):
                continue
            while data := cluster.logs(*key, at.get(key, 0)):
                if last != key:
                    sys.stdout.buffer.write(f"--- node {key[0]} {key[1]}\n".encode())
                    last = key
                sys.stdout.buffer.write(data)
                at[key] = at.get(key, 0) + len(data)
        sys.stdout.flush()
        if ended or not arguments.follow:
            return
        cluster.wait_ended(_POLL_S)


def _stop(arguments: argparse.Namespace) -> None:
    from jupyter_aicluster.cluster import Cluster

    cluster = Cluster.attach(arguments.name, options=options())
    print(f"{cluster.name}: {'its GPUs are back' if cluster.stop() else 'giving its GPUs back'}")


def _attach(arguments: argparse.Namespace) -> None:
    """A line per change of state."""
    from jupyter_aicluster.cluster import Cluster
    from jupyter_aicluster.jupyter.board import Board
    from jupyter_aicluster.jupyter.card_model import CardModel
    from jupyter_aicluster.jupyter.faces import TextFace

    cluster = Cluster.attach(arguments.name, options=options())
    record = cluster.record
    model = CardModel(name=cluster.name, backend=cluster.handle.backend, gpus=cluster.spec.gpus, asked_s=record.created_s)
    board = Board(model, TextFace(model))
    board.show()
    cluster.watch(board.change)
    cluster.wait_ended(None)
    board.wait_ended(5.0)
    board.rest()


def _enable(arguments: argparse.Namespace) -> None:
    """Registers the magic as a lazy one in the user's IPython profile; everything else in that file stays."""
    from IPython.core.profiledir import ProfileDir
    from IPython.paths import get_ipython_dir

    path = Path(ProfileDir.create_profile_dir_by_name(get_ipython_dir(), "default").location) / "ipython_config.json"
    config: dict[str, Any] = read_json(path) or {}
    if not config and path.exists() and path.read_text().strip():
        raise UsageError(f"{path} is not JSON", hint="mend it, or load by hand: %load_ext jupyter_aicluster")
    config.setdefault("MagicsManager", {}).setdefault("lazy_magics", {})["gpujob"] = "jupyter_aicluster"
    path.write_text(json.dumps(config, indent=2) + "\n")
    print(f"%%gpujob now loads by itself (in {path})")


def _doctor(arguments: argparse.Namespace) -> None:
    from jupyter_aicluster.jupyter.verbs import doctor_lines

    print("\n".join(doctor_lines(options())))


if __name__ == "__main__":
    sys.exit(main())
