"""Sweeps whose points are child processes of this machine."""

import os
import re
import signal
from pathlib import Path

from test_experiment import SMALL, Place, gathering, history

from clawexp.launcher.job import noted

QUICK = ("launcher=subprocess", *SMALL)


def test_every_point_is_a_whole_run_and_jobs_lists_them(place: Place) -> None:
    done = place.clawexp("-m", *QUICK, "model.path=package:tiny,/nowhere", "steps=1")
    assert done.returncode == 1
    assert "(model.path=/nowhere) ended with status 1: model.path '/nowhere': no config.json" in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = place.runs
    assert run.finished
    assert len(history(run)) == 1
    listed = place.clawexp("jobs")
    head, *lines = [line.split() for line in listed.stdout.splitlines()]
    assert head[0] == "job"
    assert sorted(line[1] for line in lines) == ["COMPLETED", "ENDED"]
    assert [line[2] for line in lines if line[1] == "COMPLETED"] == ["1/1"]
    assert place.left() == []


def test_no_more_points_run_at_once_than_were_asked_for_and_ctrl_c_stops_them_all(place: Place) -> None:
    with place.started("-m", *QUICK, "launcher.parallel=2", "seed=0,1,2", "steps=99") as started:
        started.until(lambda: len(place.runs) == 2 and all(any(run.calls.glob("*.log")) for run in place.runs))
        assert len(place.processes("clawexp.engine.server")) == 2
        running = [line.split()[:2] for line in place.clawexp("jobs").stdout.splitlines()[1:]]
        assert [state for _, state in running] == ["RUNNING", "RUNNING"]
        os.killpg(started.process.pid, signal.SIGINT)
        assert started.ended() == 130
    said = started.said.read_text()
    assert "Traceback" not in said
    assert len(re.findall(r"stopped before step|stopped at once", said)) == 2
    assert place.left() == []


def test_a_stopped_run_goes_on_as_the_message_says(place: Place) -> None:
    words = (*QUICK, "steps=3", "checkpoint_every=3")
    with place.started(*words) as started:
        started.until(gathering(place, 1))
        started.process.terminate()
        assert started.ended() == 130
    (run,) = place.runs
    assert run.checkpoint_steps() == [0, 1]  # made when it was stopped: none was due
    done = place.clawexp(*words, "resume=auto")
    assert done.returncode == 0, done.stderr
    assert [folder.path for folder in place.runs] == [run.path]
    assert run.finished
    assert len(history(run)) == 3
    assert len(list(noted(run.path))) == 2


def test_points_die_with_a_launcher_that_is_killed(place: Place) -> None:
    with place.started(*QUICK, "steps=99") as started:
        started.until(gathering(place, 0))
        started.process.kill()
        started.ended()
    assert [word for word in place.left() if word.isdigit()] == []


def test_a_dry_run_names_the_processes(place: Place) -> None:
    done = place.clawexp("-m", "launcher=subprocess", "seed=0,1", "--dry-run")
    assert "#   2 child processes, 2 at once, the first: " in done.stdout
    assert not list(Path(place.folder).iterdir())
