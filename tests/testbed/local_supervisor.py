"""The local backend's supervisor with hub and node programs that are plain shell commands: no Ray, so its own duties can be tested fast.

``HUB`` and ``NODE`` in the environment hold the commands; ``$RUN`` is the run folder. By default both live until their standard input ends.
"""

from __future__ import annotations

import os
import sys

from jupyter_aicluster.agent.local import main
from jupyter_aicluster.rundir import RunDir

UNTIL_EOF = "cat >/dev/null"


def command(run: RunDir, node: int | None) -> list[str]:
    script = os.environ.get("HUB" if node is None else "NODE", UNTIL_EOF)
    return [os.environ.get("SHELL_PROGRAM", "sh"), "-c", f"RUN={run.path}; {script}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command))
