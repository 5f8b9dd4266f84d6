"""Jobs on a real cluster: two nodes, accounts, preemption."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster
from cluster_place import ClusterPlace
from test_experiment import LIMIT_S, SMALL, Place, gathering, history

from clawexp.commands.compose import check
from clawexp.errors import ConfigError
from clawexp.launcher.job import Job, noted
from clawexp.run_folder import RunFolder

pytestmark = pytest.mark.slurm

SECRET = "key-that-nobody-may-read"
QUICK = ("launcher=slurm", "launcher.poll_s=1", *SMALL)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep of two learning rates that came to its end."""

    place: ClusterPlace
    jobs: list[Job]
    said: str


@pytest.fixture(scope="module")
def swept(make_folders: Callable[[], dict[str, Path]], slurm: Cluster) -> Swept:
    place = ClusterPlace(**make_folders(), cluster=slurm)
    done = subprocess.run(
        [*place.command, "-m", *QUICK, "algo.lr=1e-4,3e-4", "steps=3"],
        cwd=place.folder,
        env={**place.environment, "WANDB_API_KEY": SECRET},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = [path.parent for path in place.folder.glob("runs/*/*/jobs.jsonl")]
    return Swept(place=place, jobs=list(noted(folder)), said=done.stdout + done.stderr)


def test_a_sweep_is_one_array_whose_jobs_leave_whole_runs(swept: Swept) -> None:
    assert [job.overrides for job in swept.jobs] == [("algo.lr=0.0001",), ("algo.lr=0.0003",)]
    number = swept.jobs[0].id.partition("_")[0]
    assert [job.id for job in swept.jobs] == [f"{number}_0", f"{number}_1"]
    assert f"submitted an array of 2: {number}; look: python -m clawexp jobs; cancel: scancel {number}\n" in swept.said
    runs = [RunFolder(path=Path(job.folder)) for job in swept.jobs]  # whichever the cluster started first
    for lr, run in zip((1e-4, 3e-4), runs, strict=True):
        assert run.finished
        assert run.config["algo"]["lr"] == lr
        assert len(history(run)) == 3
    assert [swept.place.state(job.id) for job in swept.jobs] == ["COMPLETED 1"] * 2
    assert swept.place.left() == []


def test_a_job_has_the_submitters_secrets_and_nothing_shows_them(swept: Swept) -> None:
    number = swept.jobs[0].id.partition("_")[0]
    shown = swept.place.cluster.run("scontrol", "show", "job", number)
    script = swept.place.cluster.run("scontrol", "write", "batch_script", number, "-")
    assert "submitit.core._submit" in script
    assert SECRET not in shown + script + swept.said
    for path in swept.place.folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_jobs_are_listed_from_their_folder_and_from_anywhere_else(swept: Swept, cluster_place: ClusterPlace) -> None:
    for place, prefix in ((swept.place, "runs/"), (cluster_place, str(swept.place.folder))):
        done = place.clawexp("jobs")
        assert done.returncode == 0, done.stderr
        head, *lines = [line.split() for line in done.stdout.splitlines()]
        assert head == ["job", "state", "step", "folder", "point"]
        assert [(line[:3], line[4]) for line in lines if line[0] in [job.id for job in swept.jobs]] == [
            ([job.id, "COMPLETED", "3/3"], job.overrides[0]) for job in swept.jobs
        ]
        assert all(line[3].startswith(prefix) for line in lines if line[0] == swept.jobs[0].id)


def test_a_preempted_run_goes_on_in_its_folder_and_comes_to_the_same(swept: Swept, cluster_place: ClusterPlace) -> None:
    words = ("launcher.partition=low", "launcher.extra=['--nodelist=n0','--exclusive']", "checkpoint_every=3")
    with cluster_place.started(*QUICK, *words, "seed=0", "steps=3") as started:
        started.until(gathering(cluster_place, 1))
        # Its end is what this waits for: the job of the higher partition runs once the other has given way.
        cluster_place.cluster.run("srun", "--partition=main", "--nodelist=n0", "--exclusive", "true")
        (run,) = cluster_place.runs
        assert not run.finished
        assert started.ended() == 0, started.said.read_text()
    (job,) = noted(run.path)
    assert cluster_place.state(job.id) == "COMPLETED 2"
    assert "stopped before step" in Path(job.log).read_text()
    assert [folder.path for folder in cluster_place.runs] == [run.path]
    assert history(run) == history(RunFolder(path=Path(swept.jobs[0].folder)))
    assert cluster_place.left() == []


def test_ctrl_c_of_the_submitter_leaves_the_job_and_scancel_leaves_nothing(cluster_place: ClusterPlace) -> None:
    with cluster_place.started(*QUICK, "steps=99") as started:
        started.until(gathering(cluster_place, 0))
        started.process.send_signal(signal.SIGINT)
        assert started.ended() == 130
    said = started.said.read_text()
    (job,) = noted(cluster_place.runs[0].path)
    assert f"no longer waiting; the jobs go on. look: python -m clawexp jobs; cancel: scancel {job.id}" in said
    assert "Traceback" not in said
    assert re.search(rf"^{job.id} +RUNNING ", cluster_place.clawexp("jobs").stdout, re.M)
    assert cluster_place.processes("clawexp.engine.server")
    cluster_place.cluster.run("scancel", job.id)
    cluster_place.cluster.daemons.until("the end", lambda: cluster_place.state(job.id) == "CANCELLED 1")
    cluster_place.cluster.daemons.until("nothing", lambda: cluster_place.left() == [])
    ended = re.compile(rf"^{job.id} +CANCELLED ", re.M)  # squeue says COMPLETING for a while
    cluster_place.cluster.daemons.until("its line", lambda: ended.search(cluster_place.clawexp("jobs").stdout))


def test_a_point_that_fails_is_a_failed_job_and_one_message(cluster_place: ClusterPlace) -> None:
    done = cluster_place.clawexp("-m", *QUICK, "model.path=/nowhere", "steps=1")
    assert done.returncode == 1
    assert "ended FAILED: model.path '/nowhere': no config.json" in done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [path.read_text() for path in cluster_place.folder.glob("runs/*/*/jobs.jsonl")]
    assert cluster_place.state(json.loads(line)["id"]) == "FAILED 1"


def test_a_cluster_that_refuses_is_one_message_with_what_it_offers(cluster_place: ClusterPlace) -> None:
    done = cluster_place.clawexp("launcher=slurm", "launcher.partition=nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "clawexp: launcher=slurm: the cluster refused the job: invalid partition specified: nosuch; "
        "Invalid partition name specified. Choose launcher.partition among low, main\n"
    )
    assert not list(cluster_place.folder.rglob("*.pkl"))
    assert not list(cluster_place.folder.rglob("jobs.jsonl"))


def test_a_run_can_be_submitted_without_waiting(cluster_place: ClusterPlace) -> None:
    done = cluster_place.clawexp("launcher=slurm", "launcher.wait=false", "launcher.extra=['--hold']", *SMALL)
    assert done.returncode == 0, done.stderr
    (file,) = cluster_place.folder.glob("runs/*/*/jobs.jsonl")
    (job,) = noted(file.parent)
    assert re.search(rf"^{job.id} +PENDING \(JobHeldUser\) ", cluster_place.clawexp("jobs").stdout, re.M)
    cluster_place.cluster.run("scancel", job.id)


def test_without_a_cluster_the_message_says_what_to_do(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = place.clawexp("launcher=slurm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sbatch and srun are not on PATH" in done.stderr
    assert "launcher=subprocess" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_shows_the_script_and_needs_no_cluster(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ("launcher.partition=gpu", "launcher.gpus=2", "launcher.extra=['--exclusive','--constraint=a100']")
    done = place.clawexp("-m", "launcher=slurm", "seed=0,1", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    for line in ("array=0-1%2", "partition=gpu", "gpus-per-node=2", "exclusive", "constraint=a100", "requeue"):
        assert f"\n#   #SBATCH --{line}\n" in done.stdout
    assert not list(place.folder.iterdir())


def test_a_warning_before_the_start_and_an_option_without_dashes_are_refused() -> None:
    with pytest.raises(ConfigError, match="120 s before a limit of 1 min is before the start"):
        check(["launcher=slurm", "launcher.time_min=1"])
    with pytest.raises(ConfigError, match=r"launcher\.extra"):
        check(["launcher=slurm", "launcher.extra=[exclusive]"])
