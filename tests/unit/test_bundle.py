"""The bundle: one content, one zip; stand-ins on top; nothing but code in it."""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jupyter_aicluster import bundle


def test_two_caches_get_the_same_bytes(tmp_path: Path) -> None:
    one, other = bundle.make_bundle(tmp_path / "a"), bundle.make_bundle(tmp_path / "b")
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()
    assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_it_is_made_once_per_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bundle.make_bundle(tmp_path)
    before = first.stat().st_ino
    assert bundle.make_bundle(tmp_path) == first
    assert first.stat().st_ino == before
    source = tmp_path / "new.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(bundle, "files", lambda: [("jupyter_aicluster/new.py", source)])
    assert bundle.make_bundle(tmp_path) != first


def test_the_stand_ins_are_at_the_top_and_the_package_below_its_name(tmp_path: Path) -> None:
    names = zipfile.ZipFile(bundle.make_bundle(tmp_path)).namelist()
    assert len(names) == len(set(names))
    assert {name for name in names if "/" not in name} == {"rfc3987_syntax.py", "rfc3987_syntax.pyc"}
    assert {name.split("/")[0] for name in names if "/" in name} == {"jupyter_aicluster"}
    assert "jupyter_aicluster/agent/hub.py" in names
    assert not any("standin" in name for name in names)


def test_nothing_but_python_is_in_it(tmp_path: Path) -> None:
    package = tmp_path / "jupyter_aicluster"
    for name in ("__init__.py", "spec.py", "hub.token", "hub.key", "records.json", "jupyter/node_modules/gyp.py", "agent/standin/other.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    assert [name for name, _ in bundle.files(package) if "/" in name] == ["jupyter_aicluster/__init__.py", "jupyter_aicluster/spec.py"]


def test_it_is_compressed(tmp_path: Path) -> None:
    """A ConfigMap holds 1 MiB."""
    made = bundle.make_bundle(tmp_path)
    assert made.stat().st_size < sum(info.file_size for info in zipfile.ZipFile(made).infolist()) / 2


def test_the_agent_runs_from_it_alone(tmp_path: Path) -> None:
    placed = tmp_path / "bundle.zip"
    bundle.place(tmp_path / "cache", placed)
    code = "import jupyter_aicluster.agent.hub as hub; print(hub.__file__)"
    env = os.environ | {"PYTHONPATH": str(placed)}
    found = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(placed))


def test_where_links_are_impossible_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    target = tmp_path / "bundle.zip"
    target.write_text("an older one")
    monkeypatch.setattr(os, "link", refuse)
    bundle.place(tmp_path / "cache", target)
    assert target.read_bytes() == bundle.make_bundle(tmp_path / "cache").read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_process_on_the_cluster_compiles_nothing_and_another_python_takes_the_source(tmp_path: Path) -> None:
    packed = zipfile.ZipFile(bundle.make_bundle(tmp_path))
    for name in packed.namelist():
        if name.endswith(".pyc"):
            assert packed.read(name)[:4] == importlib.util.MAGIC_NUMBER
            assert name.removesuffix("c") in packed.namelist()
    code = "import jupyter_aicluster.agent.hub as hub; print(hub.__file__, hub.__loader__.get_source(hub.__name__)[:3])"
    path = str(next(tmp_path.glob("*.zip")))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [f"{path}/jupyter_aicluster/agent/hub.pyc", '"""']
