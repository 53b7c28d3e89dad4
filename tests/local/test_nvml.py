"""The local backend with GPUs that NVML tells of: found, granted, read at 1 Hz, lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_aicluster.cluster import Change, Cluster
from jupyter_aicluster.events import Event, Kind
from jupyter_aicluster.options import Options
from tests.local.conftest import until
from tests.testbed.nvml_stand_in import HEALTHY, Script, library, script

__all__ = ["library", "script"]  # fixtures
pytestmark = pytest.mark.ray


def test_real_gpus_are_found_granted_and_read(script: Script, options: Options, tmp_path: Path) -> None:
    script.write(HEALTHY)
    newest: dict[str, dict[str, object]] = {}

    def listen(change: Change) -> None:
        if isinstance(change, Event) and change.kind == Kind.GPUS:
            newest.update({str(sample["index"]): sample for sample in change.data["samples"]})

    with Cluster(gpus=2, options=replace(options, gpu_kind="auto"), wait_s=120) as cluster:
        assert not cluster.record.simulated
        [node] = cluster.snapshot()["nodes"].values()
        assert [(gpu["name"], gpu["simulated"]) for gpu in node["gpus"]] == [("H100", False)] * 2
        cluster.watch(listen)
        until(lambda: len(newest) == 2, 30, "readings")
        first, second = newest.values()
        assert (first["util_percent"], first["mem_used_bytes"], first["temp_c"], first["power_w"]) == (97, 60000 << 20, 71, 690)
        assert second["util_percent"] == 12
        script.write(HEALTHY.replace("H100 97", "H100 3"))
        until(lambda: next(iter(newest.values()))["util_percent"] == 3, 30, "the next reading")
        assert cluster.map(lambda number: number, range(2)) == [0, 1]
    end = cluster.status.end
    assert end is not None
    assert (end.used_gpus, end.peak_mem_bytes) == (2, 60000 << 20)
