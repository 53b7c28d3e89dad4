"""One certificate per cluster, trusted alone."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_aicluster import tls
from jupyter_aicluster.rundir import RunDir
from jupyter_aicluster.tls import make_certificate, pinned_context, serving_context


def run_dir(path: Path) -> RunDir:
    run = RunDir(path)
    run.create()
    make_certificate(run, "0123456789ab")
    return run


def talk(server: RunDir, client: RunDir) -> bytes:
    """What a client that pins ``client``'s certificate reads from a server that holds ``server``'s key."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            plain, _ = listening.accept()
            try:
                with serving_context(server.hub_cert, server.hub_key).wrap_socket(plain, server_side=True) as secure:
                    secure.sendall(b"hello")
            except (ssl.SSLError, ConnectionError):
                plain.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname()) as plain,
                pinned_context(client.hub_cert).wrap_socket(plain, server_hostname="any.name.at.all") as secure,
            ):
                return secure.recv(5)
        finally:
            thread.join(5)


def test_whoever_holds_the_key_is_believed_at_any_address(tmp_path: Path) -> None:
    run = run_dir(tmp_path / "a")
    assert talk(run, run) == b"hello"


def test_another_clusters_hub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(run_dir(tmp_path / "a"), run_dir(tmp_path / "b"))


def test_key_and_certificate_are_private_and_new_for_each(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        one, other = run_dir(tmp_path / "a"), run_dir(tmp_path / "b")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (one.hub_key, one.hub_cert)} == {0o600}
    assert one.hub_key.read_bytes() != other.hub_key.read_bytes()


def test_old_protocols_are_not_spoken(tmp_path: Path) -> None:
    run = run_dir(tmp_path / "a")
    assert pinned_context(run.hub_cert).minimum_version >= ssl.TLSVersion.TLSv1_2
    assert serving_context(run.hub_cert, run.hub_key).minimum_version >= ssl.TLSVersion.TLSv1_2


def test_the_pin_is_the_key_whatever_a_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LongAgo(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> LongAgo:
            return cls(2001, 1, 1, tzinfo=tz)

    monkeypatch.setattr(tls, "datetime", SimpleNamespace(datetime=LongAgo, timedelta=datetime.timedelta, UTC=datetime.UTC))
    run = run_dir(tmp_path / "a")
    assert talk(run, run) == b"hello"
