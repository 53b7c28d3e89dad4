"""The run folder: private, and written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jupyter_aicluster.rundir import RunDir, read_json, write_json, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = RunDir(tmp_path / "runs" / "u1")
        run.create()
        run.create()  # again: no difference
        write_private(run.hub_token, b"secret")
        write_json(run.submission, {"uid": "u1"})
    finally:
        os.umask(before)
    folders = [run.path, run.hub_key.parent, run.journal, run.files, run.values, run.checkpoints]
    assert {mode(folder) for folder in folders} == {0o700}
    assert {mode(path) for path in (run.hub_token, run.submission)} == {0o600}


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "end.json"
    write_json(path, {"cause": "old"})

    def refuse(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"cause": "new"})
    assert read_json(path) == {"cause": "old"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"7", b"\xff\xfe"])
def test_what_cannot_be_read_yet_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hub.json"
    assert read_json(path) is None
    path.write_bytes(content)
    assert read_json(path) is None


def test_the_tail_of_the_log_is_evidence(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.tail() == ""
    run.log.write_bytes(b"x" * 40_000 + b"\n" + b"".join(b"line %d\n" % n for n in range(50)) + b"\xff end")
    assert run.tail(3).splitlines() == ["line 48", "line 49", "\ufffd end"]
