from pathlib import Path

import pytest
from cluster import Cluster

from clawexp.errors import LauncherError
from clawexp.launcher.queue import ENDED, available, partitions, queued, states


@pytest.fixture(autouse=True)
def here(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    return slurm


@pytest.mark.slurm
def test_a_job_is_known_while_it_waits_and_after_its_end(here: Cluster) -> None:
    held = here.run(
        "sbatch", "--parsable", "--hold", "--output=/dev/null", "--comment=clawexp:/a b|c", "--wrap=true"
    ).strip()
    known = queued()
    assert (known[held].state, known[held].reason) == ("PENDING", "JobHeldUser")
    assert str(known[held].folder) == "/a b|c"
    assert states([held], known)[held] not in ENDED
    here.run("scancel", held)
    assert states([held], queued()) == {held: "CANCELLED"}


@pytest.mark.slurm
def test_what_the_queue_has_forgotten_is_in_the_accounts(here: Cluster) -> None:
    array = here.run("sbatch", "--parsable", "--wait", "--output=/dev/null", "--array=0-1", "--wrap=exit 0").strip()
    tasks = [f"{array}_0", f"{array}_1"]
    assert queued()[tasks[0]].folder is None
    here.daemons.until("accounts", lambda: states(tasks, {}) == dict.fromkeys(tasks, "COMPLETED"))
    assert states(["999999"], {}) == {}


@pytest.mark.slurm
def test_partitions_are_those_of_the_cluster() -> None:
    assert available()
    assert partitions() == ["low", "main"]


@pytest.mark.slurm
def test_a_cluster_that_does_not_answer_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm.conf").write_text("Nonsense=1\n")
    monkeypatch.setenv("SLURM_CONF", f"{tmp_path}/slurm.conf")
    with pytest.raises(LauncherError, match=r"squeue failed: .*Nonsense"):
        queued()
    assert partitions() == []
    assert states(["1"], {}) == {}


def test_programs_that_are_not_there_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not available()
    with pytest.raises(LauncherError, match="squeue did not answer"):
        queued()
