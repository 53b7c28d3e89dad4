"""Configuration files and environment become Options."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.jupyter.config import AICluster, load
from jupyter_aicluster.options import Options


def test_traits_and_options_agree() -> None:
    assert AICluster().options() == Options()


def test_environment_over_user_file_over_system_file(tmp_path: Path) -> None:
    user, system = tmp_path / "user", tmp_path / "system"
    user.mkdir()
    system.mkdir()
    (user / "jupyter_aicluster_config.py").write_text("c.AICluster.hold_s = 60\nc.AICluster.keep_s = 61\n")
    (system / "jupyter_aicluster_config.json").write_text('{"AICluster": {"keep_s": 5, "lease_s": 62, "home": "~/x"}}')
    got = load({"JUPYTER_AICLUSTER_HOLD_S": "0", "JUPYTER_AICLUSTER_GPU_KIND": "simulated"}, [str(user), str(system)])
    assert (got.hold_s, got.keep_s, got.lease_s, got.gpu_kind, got.home) == (0.0, 61.0, 62.0, "simulated", Path.home() / "x")


@pytest.mark.parametrize(
    ("environ", "file", "says"),
    [
        ({"JUPYTER_AICLUSTER_HOLD_S": "soon"}, "", "JUPYTER_AICLUSTER_HOLD_S='soon' cannot be"),
        ({"JUPYTER_AICLUSTER_HOLD_S": "-1"}, "", "a configured value cannot be"),
        ({}, "c.AICluster.gpu_kind = 'imaginary'", "a configured value cannot be"),
        ({}, "1/0", "ZeroDivisionError"),
        ({}, "def", "jupyter_aicluster_config.py cannot be read"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, environ: dict[str, str], file: str, says: str) -> None:
    (tmp_path / "jupyter_aicluster_config.py").write_text(file)
    with pytest.raises(UsageError) as error:
        load(environ, [str(tmp_path)])
    assert says in str(error.value)
