"""The supervisor of a local cluster: what it starts, starts again and gives back.

It is a real process; its hub and node programs are shell commands.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from jupyter_aicluster import ledger, procs
from jupyter_aicluster.agent.local import agent_command, node_env
from jupyter_aicluster.backends.local.backend import LocalBackend, LocalOptions, probe_gpus
from jupyter_aicluster.errors import BackendUnavailable, SubmitError
from jupyter_aicluster.handle import Handle
from jupyter_aicluster.protocol import Submission
from jupyter_aicluster.rundir import RunDir, read_json, write_json
from jupyter_aicluster.spec import ClusterSpec
from jupyter_aicluster.state import Ending, Observation, Word

SUPERVISOR = Path(__file__).parents[1] / "testbed" / "local_supervisor.py"
UNTIL_EOF = "cat >/dev/null"


class Lab:
    """A backend with 4 simulated GPUs and the clusters of one test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.backend = LocalBackend(home, LocalOptions(gpus=4, kind="simulated", supervisor=(str(SUPERVISOR),)))
        self.handles: list[Handle] = []

    async def submit(self, gpus: int = 4, nodes: int = 2, backend: LocalBackend | None = None) -> tuple[Handle, RunDir]:
        spec = ClusterSpec(gpus=gpus, nodes=nodes)
        handle = Handle.new("local")
        run = RunDir(self.home / "runs" / handle.uid)
        run.create()
        submission = Submission(handle.uid, handle.name, "local", spec.to_json(), nodes, gpus // nodes, 600.0, simulated=True)
        write_json(run.submission, submission.to_json())
        self.handles.append(handle)
        plan = self.backend.plan(spec, await self.backend.inventory())
        await (backend or self.backend).submit(plan, handle, run)
        return handle, run

    async def look(self, handle: Handle) -> Observation:
        return (await self.backend.observe([handle]))[handle]

    async def until(self, handle: Handle, word: Word) -> Observation:
        deadline = time.monotonic() + 20
        while (seen := await self.look(handle)).word is not word:
            assert time.monotonic() < deadline, f"never {word}: {seen}"
            await asyncio.sleep(0.02)
        return seen

    async def supervisor(self, handle: Handle) -> int:
        await self.until(handle, Word.GRANTED)
        return int((await self.look(handle)).native_id or 0)


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for handle in lab.handles:
        procs.kill_marked(handle.uid)
        await lab.backend.cancel(handle)
    while await lab.backend.find():
        await asyncio.sleep(0.02)


def programs(monkeypatch: pytest.MonkeyPatch, hub: str = UNTIL_EOF, node: str = UNTIL_EOF) -> None:
    monkeypatch.setenv("HUB", hub)
    monkeypatch.setenv("NODE", node)


async def test_every_program_gets_its_part(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = 'env | grep -E "^(AICLUSTER|CUDA)" | sort >$RUN/{} && mv $RUN/{} $RUN/shown-{}; '
    hub, node = shown.format("hub.tmp", "hub.tmp", "hub"), shown.format(*["n$AICLUSTER_NODE"] * 2, "$AICLUSTER_NODE")
    programs(monkeypatch, hub + UNTIL_EOF, node + UNTIL_EOF)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    handle, run = await lab.submit()
    await until(lambda: all((run.path / f"shown-{part}").exists() for part in ("hub", "0", "1")), "programs did not start")
    order, mark = "CUDA_DEVICE_ORDER=PCI_BUS_ID", f"AICLUSTER_UID={handle.uid}"
    assert (run.path / "shown-hub").read_text().split() == [mark]
    for node_number, slots in ((0, "sim0,sim1"), (1, "sim2,sim3")):
        expected = [f"AICLUSTER_NODE={node_number}", "AICLUSTER_SIMULATED=1", mark, order, f"CUDA_VISIBLE_DEVICES={slots}"]
        assert (run.path / f"shown-{node_number}").read_text().split() == expected


def test_real_gpus_are_not_marked_simulated() -> None:
    assert node_env(1, ["2", "3"], simulated=False) == {
        "AICLUSTER_NODE": "1",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


async def test_the_hubs_own_end_record_stands(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch, """echo '{"ending": "done", "cause": "its job succeeded", "ended_s": 1.0}' >$RUN/end.json""")
    handle, _ = await lab.submit()
    end = (await lab.until(handle, Word.ENDED)).end
    assert end is not None
    assert (end.ending, end.cause) == (Ending.DONE, "its job succeeded")
    assert await lab.backend.find() == []


@pytest.mark.parametrize(
    ("hub", "cause"),
    [("echo boom >&2; exit 3", "its hub ended with code 3"), ("kill -9 $$", "its hub was killed (SIGKILL)")],
)
async def test_a_hub_that_dies_ends_the_cluster_and_says_why(lab: Lab, monkeypatch: pytest.MonkeyPatch, hub: str, cause: str) -> None:
    programs(monkeypatch, hub, "setsid sleep 60 & " + UNTIL_EOF)
    handle, _ = await lab.submit()
    seen = await lab.until(handle, Word.ENDED)
    assert seen.end is not None
    assert (seen.end.ending, seen.end.cause) == (Ending.FAILED, cause)
    assert ("boom" in seen.evidence) == ("boom" in hub)
    assert procs.marked(handle.uid) == []
    assert (await lab.backend.inventory()).free == 4


async def test_stopping_tells_the_hub_first_and_waits_for_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # A hub that takes its time when asked to end; the node programs must still be there then.
    monkeypatch.setenv("END", '{"ending": "stopped", "cause": "asked to", "ended_s": 1.0}')
    end_it = 'sleep 0.3; ls $RUN >$RUN/seen; echo "$END" >$RUN/end.json; exit 0'
    programs(
        monkeypatch,
        f"trap '{end_it}' TERM; touch $RUN/on; while :; do sleep 0.02; done",
        "trap 'touch $RUN/left; exit' TERM; while :; do sleep 0.02; done",
    )
    handle, run = await lab.submit()
    await until(lambda: (run.path / "on").exists(), "no hub")
    await lab.backend.cancel(handle)
    assert (await lab.look(handle)).word is Word.RELEASING
    end = (await lab.until(handle, Word.ENDED)).end
    assert end is not None
    assert end.cause == "asked to"
    assert "left" not in (run.path / "seen").read_text().split()


async def test_a_node_program_that_dies_is_cleared_up_and_started_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    once = 'echo $AICLUSTER_NODE >>$RUN/starts; if [ $AICLUSTER_NODE = 1 ] && mkdir $RUN/once; then mkdir "/tmp/aic-$AICLUSTER_UID-1"; '
    once += "setsid sleep 61 & echo $! >$RUN/orphan.tmp; mv $RUN/orphan.tmp $RUN/orphan; kill -9 $$; fi; " + UNTIL_EOF
    programs(monkeypatch, node=once)
    handle, run = await lab.submit()
    await until(
        lambda: (run.path / "starts").exists() and sorted((run.path / "starts").read_text().split()) == ["0", "1", "1"], "not restarted"
    )
    assert procs.start_time(int((run.path / "orphan").read_text())) is None
    assert not procs.node_tmp(handle.uid, 1).exists()
    assert (await lab.look(handle)).word is Word.GRANTED


async def test_the_programs_see_the_death_of_the_supervisor(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch, UNTIL_EOF + "; touch $RUN/hub-saw", UNTIL_EOF + "; touch $RUN/node-saw-$AICLUSTER_NODE; touch $RUN/node-saw")
    handle, run = await lab.submit()
    pid = await lab.supervisor(handle)
    await until(lambda: len(procs.marked(handle.uid)) >= 3, "programs did not start")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: all((run.path / f"{name}-saw").exists() for name in ("hub", "node")), "no end of file")
    end = (await lab.until(handle, Word.ENDED)).end
    assert end is not None
    assert (end.ending, end.cause) == (Ending.FAILED, "its supervisor process was killed")
    assert (await lab.backend.inventory()).free == 4


async def test_slots_of_a_killed_supervisor_stay_taken_while_anything_of_it_lives(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs(monkeypatch, "exec sleep 62", "exec sleep 62")  # deaf to the end of their input
    handle, _ = await lab.submit()
    await until(lambda: len(procs.marked(handle.uid)) >= 3, "programs did not start")
    monkeypatch.setattr(ledger, "GRACE_S", 1.0)
    os.kill(await lab.supervisor(handle), signal.SIGKILL)
    procs.node_tmp(handle.uid, 0).mkdir()
    assert (await lab.until(handle, Word.RELEASING)).word is Word.RELEASING
    assert (await lab.backend.inventory()).free == 0
    await lab.until(handle, Word.ENDED)
    assert procs.marked(handle.uid) == []
    assert not procs.node_tmp(handle.uid, 0).exists()
    assert (await lab.backend.inventory()).free == 4


async def test_a_waiting_cluster_is_served_when_the_one_before_it_was_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch)
    first, _ = await lab.submit(4)
    pid = await lab.supervisor(first)
    second, run = await lab.submit(4)
    assert (await lab.look(second)).word is Word.QUEUED
    os.kill(pid, signal.SIGKILL)
    await until(lambda: "holds" in run.log.read_text(), "not served")  # no client looks: the waiting supervisor clears up itself


async def test_the_stop_file_is_enough(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch)
    handle, run = await lab.submit()
    await lab.supervisor(handle)
    run.stop.touch()
    end = (await lab.until(handle, Word.ENDED)).end
    assert end is not None
    assert end.ending is Ending.STOPPED


async def test_a_supervisor_that_cannot_start_submits_nothing(lab: Lab) -> None:
    broken = LocalBackend(lab.home, LocalOptions(gpus=4, kind="simulated", python="/no/such/python"))
    with pytest.raises(SubmitError) as caught:
        await lab.submit(backend=broken)
    assert "/no/such/python" in caught.value.evidence
    assert not caught.value.submitted
    assert await lab.backend.find() == []


async def test_a_queue_that_cannot_be_written_is_a_submit_error(lab: Lab) -> None:
    plan = lab.backend.plan(ClusterSpec(gpus=1), await lab.backend.inventory())
    with pytest.raises(SubmitError) as caught:
        await lab.backend.submit(plan, Handle.new("local"), RunDir(lab.home / "no" / "such" / "folder"))
    assert not caught.value.submitted


async def test_a_ledger_that_cannot_be_read_is_unknown_not_absent(lab: Lab) -> None:
    (lab.home / "ledger").write_text("in the way")
    handle = Handle.new("local")
    assert (await lab.look(handle)).word is Word.UNKNOWN
    for ask in (lab.backend.inventory(), lab.backend.find(), lab.backend.cancel(handle)):
        with pytest.raises(BackendUnavailable):
            await ask
    (lab.home / "ledger").unlink()


async def test_a_program_that_cannot_be_started_ends_the_cluster_with_the_reason(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL_PROGRAM", "/no/such/shell")
    handle, _ = await lab.submit()
    end = (await lab.until(handle, Word.ENDED)).end
    assert end is not None
    assert "/no/such/shell" in end.cause
    assert (await lab.backend.inventory()).free == 4


async def test_a_folder_without_a_submission_ends_with_its_evidence(lab: Lab) -> None:
    handle, run = Handle.new("local"), RunDir(lab.home / "runs" / "x")
    run = RunDir(lab.home / "runs" / handle.uid)
    run.create()
    lab.handles.append(handle)
    await lab.backend.submit(lab.backend.plan(ClusterSpec(gpus=1), await lab.backend.inventory()), handle, run)
    seen = await lab.until(handle, Word.ENDED)
    assert "Submission" in seen.evidence


def test_a_module_of_the_notebooks_folder_shadows_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "socket", "asyncio", "jupyter_aicluster"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    supervisor = [sys.executable, *LocalOptions().supervisor, "--help"]
    hub = [*agent_command(RunDir(tmp_path), None), "--help"]
    for command in (supervisor, hub):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (answer.returncode, "usage:" in answer.stdout) == (0, True), answer.stderr
    assert "cannot be asked" not in probe_gpus(sys.executable).problem


async def test_the_log_is_private_and_the_record_of_the_end_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch, "exit 0")
    handle, run = await lab.submit()
    await lab.until(handle, Word.ENDED)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run.log, run.end, run.path / "local.json")} == {0o600}
    assert (read_json(run.end) or {})["cause"] == "its hub ended with code 0"


async def test_the_supervisor_outlives_its_starter_as_nobodys_child(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(monkeypatch)
    handle, _ = await lab.submit()
    pid = await lab.supervisor(handle)
    parent, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:4:2]
    assert int(parent) != os.getpid()
    assert int(session) != os.getsid(0)
