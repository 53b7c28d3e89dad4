"""The magics ``%%gpujob`` and ``%gpujob``. Thin: parse, act, and show errors as one short text."""

from __future__ import annotations

import os
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from jupyter_aicluster.errors import AIClusterError, UsageError
from jupyter_aicluster.jupyter.display import short
from jupyter_aicluster.jupyter.notebook import Notebook
from jupyter_aicluster.jupyter.parse import help_text, parse_cell_line, parse_verb
from jupyter_aicluster.options import Options
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.store import Store


def configured() -> Options:
    """The options of this process."""
    from jupyter_aicluster.jupyter.config import options

    return options()


@magics_class
class GpuMagics(Magics):  # type: ignore[misc]
    """One per kernel; ``notebook`` is what it holds."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.notebook = Notebook(shell, configured)

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def gpujob(self, line: str, cell: str | None = None) -> None:
        try:
            if cell is None:
                self._verb(line)
            else:
                self._cell(line, cell)
        except AIClusterError as error:
            short(error)
            raise

    gpujob.__doc__ = help_text()

    def _cell(self, line: str, cell: str) -> None:
        from jupyter_aicluster.jupyter.verbs import show_plan

        wanted = parse_cell_line(line, self.notebook.shell.user_ns, os.environ, self.notebook.defaults)
        if wanted.dry_run:
            show_plan(self.notebook, wanted)
        elif not cell.strip():
            raise UsageError("the cell is empty", hint="code goes below the %%gpujob line")
        else:
            self.notebook.run(wanted, cell)

    def _verb(self, line: str) -> None:
        from jupyter_aicluster.jupyter.verbs import VERBS

        verb = parse_verb(line, self.notebook.shell.user_ns, os.environ, self.notebook.defaults)
        VERBS[verb.name](self.notebook, verb)


def load(shell: Any) -> None:
    """What ``%load_ext jupyter_aicluster`` does: register the magics and say which clusters are still there."""
    magics = GpuMagics(shell)
    shell.register_magics(magics)
    try:
        lines = still_there(configured())
    except AIClusterError as error:  # of a configuration file: said now, raised when it matters
        lines = [str(error)]
    for line in lines:
        print(line)  # noqa: T201


def still_there(options: Options) -> list[str]:
    """A line for each living cluster, from the records alone: no scheduler is asked, nothing slow is imported."""
    if not options.home.exists():
        return []
    store = Store(options.home)
    return [
        f"{record.handle.name} ({record.spec.gpus} GPUs, {record.handle.backend}) is still yours: %gpujob attach {record.handle.name}"
        for record in store.living()
        if not RunDir(record.run).end.exists()
    ]
