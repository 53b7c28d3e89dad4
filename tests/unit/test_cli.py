"""`jupyter aicluster` without any cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_aicluster.handle import Handle
from jupyter_aicluster.jupyter import cli
from jupyter_aicluster.options import Options
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import End, Ending, State, Status
from jupyter_aicluster.store import Record, Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "options", lambda: Options(home=tmp_path / "home", gpu_kind="simulated"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return tmp_path / "home"


def put_ended(home: Path) -> None:
    store = Store(home)
    end = End(Ending.DONE, "its job is done", 1_700_000_100.0)
    spec = ClusterSpec(gpus=4, env=(("TOKEN", "secret"),))
    store.put(Record(Handle("local", "a" * 12, "fox"), spec, 1_700_000_000.0, store.run("a" * 12).path, Status(State.ENDED, end=end)))


def test_list_is_empty_and_then_shows_what_there_was(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == "No clusters.\n"
    put_ended(home)
    assert cli.main(["list"]) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert title.split() == ["NAME", "GPUS", "BACKEND", "STATE", "SINCE"]
    assert row.split()[:4] == ["fox", "4", "local", "ended"]
    assert row.endswith("its job is done")


def test_list_as_json_has_no_environment_in_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_ended(home)
    assert cli.main(["list", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["ending"] == "done"
    assert "secret" not in out


@pytest.mark.parametrize("verb", ["stop", "logs", "attach"])
def test_an_unknown_name_is_one_sentence(home: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "nobody"]) == 1
    said = capsys.readouterr().err
    assert "no cluster called 'nobody'" in said
    assert "Traceback" not in said


def test_unknown_words_exit_with_2(home: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["destroy"])
    assert stopped.value.code == 2


def test_enable_keeps_the_rest_of_the_profile(home: Path, tmp_path: Path) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    config = profile / "ipython_config.json"
    config.write_text('{"InteractiveShell": {"autocall": 1}}')
    assert cli.main(["enable"]) == 0
    assert cli.main(["enable"]) == 0
    assert json.loads(config.read_text()) == {
        "InteractiveShell": {"autocall": 1},
        "MagicsManager": {"lazy_magics": {"gpujob": "jupyter_aicluster"}},
    }


def test_enable_does_not_touch_what_it_cannot_read(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.json").write_text("{ mine")
    assert cli.main(["enable"]) == 1
    assert (profile / "ipython_config.json").read_text() == "{ mine"
    assert "is not JSON" in capsys.readouterr().err


def test_enable_in_a_home_without_a_profile(home: Path, tmp_path: Path) -> None:
    assert cli.main(["enable"]) == 0
    assert "gpujob" in (tmp_path / "ipython" / "profile_default" / "ipython_config.json").read_text()


def test_doctor_says_what_is_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    assert "ray" in capsys.readouterr().out
