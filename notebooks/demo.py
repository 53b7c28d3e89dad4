"""Run the quickstart notebook for real and say where the finished notebook and a picture of it are (`make demo`)."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "01_quickstart.ipynb"
TARGET = HERE.parent / "build" / "demo"
CELL_TIMEOUT_S = 900
MOST_LINES = 12


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(SOURCE, as_version=4)
    finished = TARGET / SOURCE.name
    begun = time.monotonic()
    try:
        asyncio.run(execute(notebook))
        status = 0
    except CellExecutionError as error:
        print(f"\nA cell failed:\n{error}", file=sys.stderr)
        status = 1
    finally:
        nbformat.write(notebook, finished)
    page = finished.with_suffix(".html")
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0])
    print(f"\n{'Done' if status == 0 else 'Stopped'} after {time.monotonic() - begun:.0f} s")
    print(f"  notebook  {finished}\n  page      {page}")
    for picture in pictures(notebook, page):
        print(f"  picture   {picture}")
    return status


async def execute(notebook: nbformat.NotebookNode) -> None:
    """Cell by cell, telling what runs. Cells tagged ``raises-exception`` may."""
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(HERE)}})
    async with client.async_setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            begun = time.monotonic()
            print(f"[{index}] {cell.source.splitlines()[0][:100]}", flush=True)
            await client.async_execute_cell(cell, index)
            for text in texts(cell):
                lines = text.rstrip().splitlines()
                print("\n".join(f"    {line}" for line in [*lines[:MOST_LINES], *(["…"] if len(lines) > MOST_LINES else [])]))
            print(f"    ({time.monotonic() - begun:.1f} s)", flush=True)


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """What a terminal can show of a cell's outputs."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        elif output.output_type == "error":
            found.append(f"{output.ename}: {output.evalue}")
        elif "text/plain" in output.get("data", {}):
            found.append(output.data["text/plain"])
    return found


def pictures(notebook: nbformat.NotebookNode, page: Path) -> list[Path]:
    """The page as a picture where there is a Chromium, and the plots of the notebook."""
    made = []
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium:
        picture = page.with_suffix(".png")
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1100,4600",
            f"--screenshot={picture}",
        ]
        with tempfile.TemporaryDirectory() as profile:
            subprocess.run(
                [chromium, *arguments, f"--user-data-dir={profile}", page.as_uri()], capture_output=True, timeout=120, check=False
            )
        if picture.exists():
            made.append(picture)
    plots = (o.data["image/png"] for c in notebook.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {}))
    for number, plot in enumerate(plots, 1):
        made.append(page.with_name(f"plot-{number}.png"))
        made[-1].write_bytes(base64.b64decode(plot))
    return made


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of Ray's processes would compile everything again
    sys.exit(main())
