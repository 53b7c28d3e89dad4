"""A scripted libnvidia-ml, compiled on the spot: GPUs for a machine that has none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml") / "nvml.c"
HEALTHY = "gpu GPU-aaaa1111-0000 H100 97 60000 81559 71 690000\ngpu GPU-aaaa2222-0000 H100 12 100 81559 40 90500\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of libnvidia-ml")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", target, SOURCE], check=True)
    return folder


class Script:
    """The state file of the stand-in, replaced whole as its readers poll it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(text)
        draft.rename(self.path)


@pytest.fixture
def script(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    state = Script(tmp_path / "gpus")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(state.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    state.write(HEALTHY)
    return state
