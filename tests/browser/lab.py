"""A JupyterLab of our own (port, token, home, configuration, data) and a notebook of it in a page."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page

from jupyter_aicluster.rundir import RunDir

START_S = 90.0
ROOT = Path(__file__).parents[2]

# The page's own connection to its kernel: a cell run before it stands is dropped.
_CONNECTED = """() => {
  const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel.status === 'idle' && kernel.info;
}"""
_SETTINGS = {  # no questions about news; the state of widgets saved with the notebook, as some people have it
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
}


@dataclass(frozen=True)
class Lab:
    base: str  # http://127.0.0.1:PORT/a/prefix/
    token: str
    root: Path  # notebooks
    home: Path  # of jupyter_aicluster: records and run folders
    env: dict[str, str] = field(default_factory=dict)  # of the server: for processes that are to share its home
    errors: list[str] = field(default_factory=list)  # in the pages' consoles, since somebody looked last

    def open(self, browser: Browser, name: str, width: int = 1280, height: int = 900) -> Page:
        """The notebook in a fresh page, its kernel idle and connected."""
        page = browser.new_context(viewport={"width": width, "height": height}).new_page()
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{self.base}lab/tree/{name}?reset&token={self.token}")
        page.wait_for_function("window.jupyterapp && document.querySelector('.jp-Notebook .cm-content')", timeout=90_000)
        page.wait_for_function(_CONNECTED, timeout=90_000, polling=100)
        return page


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    root, log = folder / "notebooks", folder / "server.log"
    root.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Lab(f"http://127.0.0.1:{port}/some/prefix/", secrets.token_hex(16), root, folder / "home" / "aicluster")
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", "--ServerApp.base_url=/some/prefix/", f"--ServerApp.root_dir={root}"),
        "--LabApp.expose_app_in_browser=True",
    ]
    for name, values in _SETTINGS.items():
        settings = folder / "config" / "lab/user-settings" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(values))
    extensions = folder / "data" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / "jupyter-aicluster").symlink_to(ROOT / "jupyter_aicluster/jupyter/labextension")  # this checkout's, whatever is installed
    here.env.update(_environment(folder, here))
    with log.open("w") as out:
        server = subprocess.Popen(command, env=here.env, cwd=folder, stdout=out, stderr=out)
    try:
        _wait_until_up(server, here, log)
        yield here
    finally:
        for run in here.home.glob("runs/*"):
            RunDir(run).stop.touch()  # a test that failed may have left a cluster held
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def write_notebook(path: Path, *cells: str) -> None:
    empty: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = {
        "cells": [empty | {"id": f"cell-{number}", "source": source} for number, source in enumerate(cells)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook))


def _environment(folder: Path, here: Lab) -> dict[str, str]:
    """Ours, with every place where Jupyter, IPython or we keep something below ``folder``."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "AICLUSTER_", "RAY_"))}
    return env | {
        "HOME": str(folder / "home"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_PATH": str(folder / "data"),  # before an installation's, also in a virtual environment
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_TOKEN": here.token,
        "JUPYTER_AICLUSTER_HOME": str(here.home),
        "JUPYTER_AICLUSTER_GPU_KIND": "simulated",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }


def _wait_until_up(server: subprocess.Popen[bytes], here: Lab, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{here.base}api", timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}") from error
        time.sleep(0.1)
