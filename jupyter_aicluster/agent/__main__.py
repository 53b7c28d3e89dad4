"""``python -m jupyter_aicluster.agent hub|node|local …``: every program of a cluster but Ray and the driver."""

from __future__ import annotations

import sys
from importlib import import_module

ROLES = ("hub", "node", "local")


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ROLES:
        print(f"usage: python -m jupyter_aicluster.agent {'|'.join(ROLES)} --run FOLDER ...", file=sys.stderr)
        return 2
    return int(import_module(f"jupyter_aicluster.agent.{argv[0]}").main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
