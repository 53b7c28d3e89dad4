from pathlib import Path

import pytest

from jupyter_aicluster import job


def test_outside_a_cluster_it_is_a_single_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ATTEMPT", "RANK", "WORLD_SIZE", "NODES", "CHECKPOINT_DIR", "NOTICE"):
        monkeypatch.delenv(f"AICLUSTER_{name}", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (job.attempt, job.rank, job.world_size, job.node_count, job.device) == (1, 0, 1, 1, "cpu")
    assert job.checkpoint_dir == Path("checkpoints")
    assert job.checkpoint_dir.is_dir()
    assert not job.preempted()
    job.report(loss=1.0)


def test_inside_it_reads_the_environment_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AICLUSTER_ATTEMPT", "2")
    monkeypatch.setenv("AICLUSTER_CHECKPOINT_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a1c,GPU-9b")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("AICLUSTER_SIMULATED", raising=False)
    monkeypatch.setenv("AICLUSTER_NOTICE", str(tmp_path / "notice"))
    assert (job.attempt, job.device) == (2, "cuda:1")
    assert job.checkpoint_dir == tmp_path / "a" / "b"
    (tmp_path / "notice").touch()
    assert job.preempted()
    monkeypatch.setenv("AICLUSTER_SIMULATED", "1")
    assert job.device == "cpu"


def test_a_report_is_one_line_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(job, "_reporter", said.append)
    monkeypatch.setattr(job, "_reported_s", -1e9)
    for step in range(100):
        job.report(step=step, loss=1 / 3)
    assert said == ["step 0 · loss 0.333333"]


def test_a_mistyped_attribute_names_the_others() -> None:
    with pytest.raises(AttributeError, match="checkpoint_dir"):
        _ = job.checkpointdir
