"""``python -m benchmarks [NAME …]``: run the benchmarks, print each against its budget, write ``build/bench.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import bringup, flood, kernel, warm
from benchmarks.figure import Figure

BENCHMARKS: dict[str, Callable[[], Iterator[Figure]]] = {
    "bringup": bringup.measure,
    "load_ext": kernel.measure,
    "warm": warm.measure,
    "flood": flood.measure,
}


def main(names: list[str]) -> int:
    if unknown := set(names) - set(BENCHMARKS):
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
        return 2
    figures = []
    for name in names or BENCHMARKS:
        for figure in BENCHMARKS[name]():
            print(figure, flush=True)
            figures.append(figure)
    target = Path("build/bench.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([figure.to_json() for figure in figures], indent=1) + "\n")
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
