"""Processes by their mark: found after their parents are gone, and nobody else's."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_aicluster.procs import TempDirRefused, any_marked, hub_tmp, kill_marked, marked, node_tmp, private_tmp, remove_tmp, start_time
from jupyter_aicluster.protocol import Submission


@pytest.fixture
def uid() -> str:
    return secrets.token_hex(6)


@contextmanager
def process(**env: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **env})
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def mark(uid: str, node: int | None = None) -> dict[str, str]:
    return {Submission.UID_ENV: uid} | ({} if node is None else {Submission.NODE_ENV: str(node)})


def test_only_marked_ones_are_found_and_by_node(uid: str) -> None:
    with (
        process(**mark(uid, 1)) as one,
        process(**mark(uid, 11)) as eleven,
        process(**mark(uid + "0")),
        process(NOTE=f"{Submission.UID_ENV}={uid}"),
    ):
        assert sorted(marked(uid)) == sorted([one.pid, eleven.pid])
        assert marked(uid, 1) == [one.pid]
        assert marked(uid, 2) == []


def test_killing_spares_whom_it_is_told_to(uid: str) -> None:
    with process(**mark(uid, 0)) as doomed, process(**mark(uid, 1)) as spared:
        assert kill_marked(uid, spare=lambda pid: pid == spared.pid) == []
        assert doomed.wait(5) == -9
        assert spared.poll() is None


def test_an_orphan_keeps_its_mark(uid: str) -> None:
    """Its parent ends at once; it goes to init, or to whoever adopts."""
    code = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | mark(uid), check=True)
    assert any_marked(uid)  # looks twice: it may still be in the middle of its exec
    orphans = marked(uid)
    assert len(orphans) == 1
    assert kill_marked(uid) == []
    assert start_time(orphans[0]) is None


def test_a_process_is_named_by_pid_and_start_time(uid: str) -> None:
    with process(**mark(uid)) as child:
        began = start_time(child.pid)
        assert began is not None
        assert began.isdigit()
        assert start_time(child.pid) == began
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_time(child.pid) is None  # a zombie is no process
        assert marked(uid) == []
    assert start_time(child.pid) is None


def test_temp_folders_of_one_node_or_all(uid: str) -> None:
    folders = [node_tmp(uid, 0), node_tmp(uid, 1), node_tmp(uid, 10), hub_tmp(uid)]
    for folder in folders:
        (folder / "inside").mkdir(parents=True)
    remove_tmp(uid, 1)
    assert [folder.exists() for folder in folders] == [True, False, True, True]
    remove_tmp(uid)
    remove_tmp(uid)
    assert not any(folder.exists() for folder in folders)


def test_a_private_folder_is_made_or_taken_again_with_its_mode_put_right(tmp_path: Path) -> None:
    folder = tmp_path / "aic-x-0"
    for _ in range(2):
        assert private_tmp(folder) == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        folder.chmod(0o777)


def test_a_folder_that_somebody_else_made_first_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "aic-x-0"
    folder.mkdir()
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TempDirRefused, match="belongs to") as raised:
        private_tmp(folder)
    assert str(folder) in raised.value.what


def test_a_link_in_the_place_of_a_private_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious" / "ray").mkdir(parents=True)
    (tmp_path / "aic-x-0").symlink_to(tmp_path / "precious")
    with pytest.raises(TempDirRefused):
        private_tmp(tmp_path / "aic-x-0")
    assert (tmp_path / "precious" / "ray").is_dir()


def test_a_private_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TempDirRefused, match="cannot be made"):
        private_tmp(tmp_path / "file" / "aic-x-0")
