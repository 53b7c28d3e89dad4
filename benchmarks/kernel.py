"""What the extension costs a kernel that only loads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from benchmarks.figure import Figure

CODE = """
import sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
began = time.perf_counter()
shell.run_line_magic("load_ext", "jupyter_aicluster")
print(time.perf_counter() - began, [name for name in ("ray", "kubernetes", "lightkube", "dask", "aiohttp") if name in sys.modules])
"""


def measure() -> Iterator[Figure]:
    runs = [subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.split(" ", 1) for _ in range(5)]
    imported = runs[0][1].strip()
    yield Figure("%load_ext", 1000 * median(float(seconds) for seconds, _ in runs), 100.0, "ms", f"heavy imports: {imported}")
