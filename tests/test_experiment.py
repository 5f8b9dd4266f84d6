"""Whole runs, as a user starts them: real parts, in processes of their own.

A run of two tasks takes some ten seconds on a quiet machine; most of it is imports. How good the model is does not
matter to any test.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clawexp.capture.journal import read_calls
from clawexp.records import Call
from clawexp.run_folder import RunFolder, run_folders

SMALL = (
    *("num_tasks=2", "group_size=2", "eval.num_tasks=0", "logger=[jsonl]", "learner.threads=1"),
    *("model.max_tokens=32", "harness.builtin.max_turns=3", "model.engine.deterministic=true"),
    # Long limits, so that a busy machine changes nothing.
    *("harness.builtin.timeout_s=600", "rollout.settle_s=300", "rollout.sandbox_s=300", "rollout.grade_s=300"),
    *("model.engine.start_s=300",),
)
VARIED = (*SMALL, "seed=6")
"""In each of its first steps a group has rewards that differ, so there is a loss."""
LIMIT_S = 600
"""For anything that only a hang would reach."""
STOP_S = 15
"""From Ctrl-C to the end; five seconds where nothing else runs."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder to run in, with a scratch folder of its own, so that what is left behind can be told."""

    folder: Path
    scratch: Path

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "clawexp"]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1"}

    @property
    def runs(self) -> list[RunFolder]:
        """In order of their beginning."""
        return run_folders(self.folder)[::-1]

    def clawexp(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    @contextmanager
    def started(self, *words: str) -> Iterator["Started"]:
        """A run that goes on; killed with its group at the end of the context if it is still there."""
        with (
            (self.folder / "stderr.txt").open("w+") as said,
            subprocess.Popen(
                [*self.command, *words],
                cwd=self.folder,
                env=self.environment,
                stderr=said,
                start_new_session=True,
                preexec_fn=_hears_ctrl_c,
            ) as process,
        ):
            try:
                yield Started(process=process, said=Path(said.name))
            finally:
                process.kill()

    def processes(self, word: str = "") -> list[int]:
        """Processes of this place's runs: they carry its scratch folder in their environment or arguments."""
        mark, found = str(self.scratch).encode(), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes()
                if word.encode() in arguments and mark in arguments + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                continue
        return found

    def left(self) -> list[str]:
        """What is left of runs that are over: processes, folders, mounts. Processes may take a moment to be gone."""
        deadline = time.monotonic() + STOP_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.scratch) in line]
        folders = [str(path) for path in self.scratch.glob("*/*")]
        return [*map(str, self.processes()), *mounts, *folders]


def _hears_ctrl_c() -> None:
    """Even where these tests run in the background of a shell, which makes what it starts deaf to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A run that goes on."""

    process: subprocess.Popen[bytes]
    said: Path

    def until(self, happened: Callable[[], object]) -> None:
        """Wait for something. Fails where the run ends first, or hangs."""
        deadline = time.monotonic() + LIMIT_S
        while not happened():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, "it hangs: " + self.said.read_text()
            time.sleep(0.05)

    def ended(self) -> int:
        """Wait for the end; the exit status."""
        return self.process.wait(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as scratch:

        def make(name: str) -> Place:
            # Programs in sandboxes make sockets below it, so its path must be short.
            short = Path(tempfile.mkdtemp(dir=scratch))
            return Place(folder=tmp_path_factory.mktemp(name), scratch=short)

        yield make


@pytest.fixture
def place(make_place: Callable[[str], Place]) -> Place:
    return make_place("place")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run of three steps that came to its end."""

    place: Place
    run: RunFolder
    said: str

    @property
    def path(self) -> str:
        return str(self.run.path)


@pytest.fixture(scope="module")
def finished(make_place: Callable[[str], Place]) -> Finished:
    place = make_place("finished")
    done = place.clawexp("steps=3", *VARIED)
    assert done.returncode == 0, done.stderr
    (run,) = place.runs
    return Finished(place=place, run=run, said=done.stdout + done.stderr)


def metrics(run: RunFolder) -> list[dict[str, Any]]:
    path = run.path / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def history(run: RunFolder) -> list[tuple[Any, ...]]:
    """What must be the same to the bit whenever the same step is done again."""
    names = ("step", "reward/mean", "learner/loss", "capture/sampled_tokens", "learner/entropy")
    return [tuple(line.get(name) for name in names) for line in metrics(run)]


def gathering(place: Place, step: int) -> Callable[[], object]:
    """Whether a call of this step is in the journal of the place's newest run."""
    logs = f"{step:05d}-*.log"
    return lambda: any(path.stat().st_size for run in place.runs for path in run.calls.glob(logs))


def test_a_finished_run_leaves_all_that_is_needed_to_understand_and_repeat_it(finished: Finished) -> None:
    run = finished.run
    assert run.finished
    assert run.config["steps"] == 3
    assert "torch" in json.loads((run.path / "environment.json").read_text())["packages"]
    assert len(list(run.calls.glob("*.log"))) == 3 * 2 * 2
    assert sorted(run.steps()) == [0, 1, 2]
    assert run.checkpoint_steps() == [2, 3]
    assert [line["step"] for line in metrics(run)] == [0, 1, 2]
    assert json.loads((run.path / "summary.json").read_text())["reward/mean"] == metrics(run)[-1]["reward/mean"]
    for step, line in enumerate(metrics(run)):
        rollouts = run.rollouts(step)
        assert len(rollouts) == line["rollout/count"] == 4
        assert sum(len(rollout.calls) for rollout in rollouts) == line["capture/calls"] > 0
        assert sum(rollout.reward or 0.0 for rollout in rollouts) / 4 == pytest.approx(line["reward/mean"])
        assert {span.version for r in rollouts for call in r.calls for span in call.spans} == {step}
        assert line["engine/probe_delta"] < 5e-3


def test_a_finished_run_leaves_nothing_outside_of_its_folder(finished: Finished) -> None:
    assert finished.place.left() == []
    assert [path.name for path in finished.place.folder.iterdir()] == ["runs"]


def test_no_key_is_written_anywhere(finished: Finished) -> None:
    files = [path for path in finished.run.path.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert len(files) > 20
    for path in files:
        assert not re.search(rb"sk-[0-9a-f]{48}", path.read_bytes()), path
    assert "sk-" not in finished.said


def test_replay_rebuilds_the_loss_from_the_journal(finished: Finished) -> None:
    done = finished.place.clawexp("replay", finished.path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"step 2: loss \S+ from the journal, \S+ logged, difference \S+\n", done.stdout)


def test_replay_of_a_journal_that_was_changed_fails_with_file_and_line(finished: Finished, tmp_path: Path) -> None:
    copy = shutil.copytree(finished.path, tmp_path / "run")
    log = next(path for path in sorted(copy.glob("calls/00002-*.log")) if path.read_bytes().count(b"\n") > 1)
    log.write_bytes(log.read_bytes().replace(b'"position":0', b'"position":7', 1))
    done = finished.place.clawexp("replay", str(copy))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{log}, line 1: its checksum is wrong" in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluation_of_a_runs_newest_checkpoint_prints_a_line_of_json(finished: Finished) -> None:
    words = (f"resume={finished.path}", *VARIED, "eval.num_tasks=2", "eval.rollouts=1")
    done = finished.place.clawexp("eval", *words)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["eval/rollouts"] == 2
    assert values["eval/without_verdict"] == 0
    assert 0 <= values["eval/score"] <= 1
    assert "mean score" in done.stderr
    assert finished.place.left() == []
    assert len(finished.place.runs) == 1


def test_a_finished_run_can_be_made_longer_but_not_another_experiment(finished: Finished, tmp_path: Path) -> None:
    copy = shutil.copytree(finished.path, tmp_path / "run")
    refused = finished.place.clawexp(f"resume={copy}", "steps=4", *VARIED, "algo.lr=0.5")
    assert refused.returncode == 2
    assert "another experiment; these differ: algo.lr" in refused.stderr
    before = history(RunFolder(path=copy))
    done = finished.place.clawexp(f"resume={copy}", "steps=4", *VARIED)
    assert done.returncode == 0, done.stderr
    grown = RunFolder(path=copy)
    assert history(grown)[:3] == before
    assert [line["step"] for line in metrics(grown)] == [0, 1, 2, 3]
    assert grown.checkpoint_steps() == [3, 4]
    assert grown.finished


def test_a_folder_that_holds_a_run_is_not_overwritten(place: Place) -> None:
    (place.folder / "mine" / "checkpoints" / "step-00001").mkdir(parents=True)
    done = place.clawexp("hydra.run.dir=mine", "steps=1", *VARIED)
    assert done.returncode == 2
    assert "already holds a run; go on with it by resume=" in done.stderr


def test_a_killed_run_goes_on_where_it_stood_and_comes_to_the_same(finished: Finished, place: Place) -> None:
    with place.started("steps=3", *VARIED) as started:
        started.until(gathering(place, 2))
        started.process.kill()
        assert started.ended() == -signal.SIGKILL
    assert [word for word in place.left() if word.isdigit()] == []  # its processes died with it
    (run,) = place.runs
    before = history(run)
    assert before == history(finished.run)[: len(before)]
    assert len(before) == 2
    done = place.clawexp("resume=auto", "steps=3", *VARIED)
    assert done.returncode == 0, done.stderr
    assert [folder.path for folder in place.runs] == [run.path]
    assert history(run) == history(finished.run)
    assert [rollout.reward for rollout in run.rollouts(2)] == [r.reward for r in finished.run.rollouts(2)]
    assert place.left() == []


def test_a_run_with_a_critic_goes_on_and_replays_to_the_bit(place: Place, make_place: Callable[[str], Place]) -> None:
    straight, apart = place, make_place("apart")
    for words in (["steps=3"], ["steps=2"], ["steps=3"]):
        where = apart if words == ["steps=2"] or straight.runs else straight
        resume = [f"resume={apart.runs[0].path}"] if apart.runs else []
        done = where.clawexp(*words, *resume, "algo=ppo", *SMALL)
        assert done.returncode == 0, done.stderr
    (one,), (other,) = straight.runs, apart.runs
    assert history(one) == history(other)
    values = [[line["critic/value_mean"] for line in metrics(run)] for run in (one, other)]
    assert values[0] == values[1]
    assert len(set(values[0])) > 1
    assert [line["critic/warming"] for line in metrics(one)] == [1, 0, 0]
    replayed = apart.clawexp("replay", str(other.path))
    assert replayed.returncode == 0, replayed.stderr


def test_a_step_that_teaches_too_little_tries_further_tasks_the_same_ones_on_resume(
    place: Place, make_place: Callable[[str], Place]
) -> None:
    words, apart = ("steps=2", *VARIED, "algo.extra_rounds=2"), make_place("apart")
    done = place.clawexp(*words)
    assert done.returncode == 0, done.stderr
    with apart.started(*words) as started:
        started.until(gathering(apart, 1))
        started.process.kill()
        assert started.ended() == -signal.SIGKILL
    done = apart.clawexp("resume=auto", *words)
    assert done.returncode == 0, done.stderr
    (one,), (other,) = place.runs, apart.runs
    assert history(one) == history(other)
    for step, line in enumerate(metrics(one)):
        names = [rollout.id for rollout in one.rollouts(step)]
        assert names == [rollout.id for rollout in other.rollouts(step)]
        assert len(set(names)) == len(names) == line["rollout/count"]
        assert line["rollout/groups_with_variance"] >= 2 or line["rollout/groups"] >= 4  # both further rounds were made
        assert line["rollout/valid"] == 2 * line["rollout/groups_with_variance"]
    assert max(line["rollout/groups"] for line in metrics(one)) > 2
    replayed = place.clawexp("replay", str(one.path))
    assert replayed.returncode == 0, replayed.stderr


def test_a_stopped_run_says_how_to_go_on_and_that_works(finished: Finished, place: Place) -> None:
    with place.started("steps=9", *VARIED) as started:
        started.until(gathering(place, 1))
        started.process.terminate()
        assert started.ended() == 130
    assert place.left() == []
    said = started.said.read_text()
    assert "Traceback" not in said
    line = re.search(r"stopped before step [23]\. Go on with: python -m clawexp (.*)", said)
    assert line, said
    done = place.clawexp(*shlex.split(line.group(1)), "steps=3")
    assert done.returncode == 0, done.stderr
    assert history(place.runs[0]) == history(finished.run)


@pytest.mark.parametrize("whole_group", [True, False], ids=["as a terminal does", "to the driver alone"])
def test_ctrl_c_stops_a_run_at_once_and_leaves_nothing(whole_group: bool, place: Place) -> None:
    with place.started("steps=99", *VARIED) as started:
        started.until(gathering(place, 0))
        send: Callable[[int, int], None] = os.killpg if whole_group else os.kill
        begin = time.monotonic()
        send(started.process.pid, signal.SIGINT)
        assert started.ended() == 130
        assert time.monotonic() - begin < STOP_S
    said = started.said.read_text()
    assert "Traceback" not in said
    assert "Go on with: python -m clawexp" in said
    assert place.left() == []
    (run,) = place.runs
    assert not run.finished


def test_a_run_that_goes_on_cannot_be_taken_over(place: Place) -> None:
    with place.started("steps=99", *VARIED) as started:
        started.until(gathering(place, 0))
        for resume, reason in {str(place.runs[0].path): "still runs it", "auto": "no unfinished run"}.items():
            refused = place.clawexp(f"resume={resume}", *VARIED)
            assert refused.returncode == 2
            assert reason in refused.stderr


def test_a_sweep_makes_a_whole_run_of_every_point(place: Place) -> None:
    done = place.clawexp("-m", "algo.lr=1e-4,3e-4", "steps=1", *VARIED)
    assert done.returncode == 0, done.stderr
    runs = place.runs
    assert [run.config["algo"]["lr"] for run in runs] == [1e-4, 3e-4]
    assert len({run.path.parent for run in runs}) == 1
    for run in runs:
        assert run.finished
        assert run.checkpoint_steps() == [0, 1]
        assert len(metrics(run)) == 1
    assert history(runs[0]) == history(runs[1])  # the first step is gathered by the same weights
    assert place.left() == []


def test_a_point_of_a_sweep_that_fails_does_not_end_the_others(place: Place) -> None:
    done = place.clawexp("-m", "model.path=/nowhere,package:tiny", "steps=1", *VARIED)
    assert done.returncode == 1
    assert "check model.path" in done.stderr
    assert "Traceback" not in done.stderr
    assert [run.finished for run in place.runs] == [True]
    assert place.left() == []


def test_two_runs_at_once_do_not_disturb_each_other(finished: Finished, place: Place) -> None:
    other = Place(folder=place.folder, scratch=place.scratch)
    with place.started("steps=1", *VARIED) as first, other.started("steps=1", "seed=7", *SMALL) as second:
        assert (first.ended(), second.ended()) == (0, 0)
    runs = sorted(place.runs, key=lambda run: run.config["seed"])
    assert [run.config["seed"] for run in runs] == [6, 7]
    assert all(run.finished for run in runs)
    assert history(runs[0]) == history(finished.run)[:1]
    assert place.left() == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("clawexp.capture.proxy", "the capture process d"),
        ("clawexp.engine.server", "the engine died (exit status -9)"),
    ],
)
def test_a_run_whose_engine_or_capture_dies_ends_with_a_reason(program: str, reason: str, place: Place) -> None:
    with place.started("steps=9", *VARIED, "rollout.retries=0") as started:
        started.until(gathering(place, 0))
        (pid,) = place.processes(program)
        os.kill(pid, signal.SIGKILL)
        assert started.ended() == 1
    said = started.said.read_text()
    assert reason in said
    assert "go on with: python -m clawexp" in said
    assert "Traceback" not in said
    assert place.left() == []


def test_a_step_of_nothing_but_faults_changes_no_weights_and_no_reward(place: Place) -> None:
    file = place.folder / "tasks.jsonl"
    lines = [{"id": name, "instruction": "Do it.", "check": {"script": "exit 3"}} for name in ("a", "b")]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = place.clawexp("steps=1", *SMALL, "taskset=jsonl", f"taskset.path={file}", "taskset.eval_share=0")
    assert done.returncode == 0, done.stderr
    (run,) = place.runs
    (line,) = metrics(run)
    assert line["outcome/grader_fault"] == 4
    assert line["learner/skipped"] == 1
    assert "reward/mean" not in line
    assert "learner/loss" not in run.steps()[0]["metrics"]
    assert {rollout.reward for rollout in run.rollouts(0)} == {None}


def test_both_ways_in_lead_to_the_same_trees(place: Place) -> None:
    for way_in in ("base_url", "interception"):
        done = place.clawexp(
            "steps=2", "num_tasks=2", "group_size=3", f"harness.builtin.way_in={way_in}",
            # One at a time: the last bits of a logprob depend on what shares its batch.
            "rollout.max_concurrency=1", "eval.num_tasks=0", f"hydra.run.dir=runs/both/{way_in}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    told, intercepted = (place.folder / "runs/both" / way_in / "calls" for way_in in ("base_url", "interception"))
    names = sorted(path.name for path in told.iterdir())
    assert len(names) == 12
    for name in names:
        assert [gist(c) for c in read_calls(intercepted / name)] == [gist(c) for c in read_calls(told / name)]


def gist(call: Call) -> tuple[object, ...]:
    """All of a call but its times."""
    return (call.prompt_ids, call.sampled_ids, call.logprobs, call.spans, call.cause, call.kind, call.parent,
            call.shared, call.verdict, call.requested, call.submitted)  # fmt: skip


@pytest.mark.harness
def test_different_harnesses_train_one_model(
    whole_run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    small = ("steps=2", "num_tasks=2", "group_size=2", "eval.num_tasks=0", "logger=[jsonl]", "hydra.run.dir=run")
    done = whole_run("harness=mix", *small)
    assert done.returncode == 0, done.stderr
    lines = metrics(RunFolder(path=tmp_path / "run"))
    assert len(lines) == 2
    for line in lines:
        assert line["rollout/count"] == 4
        assert {"reward/mean/builtin", "reward/mean/claude_code"} <= line.keys()
    assert "left of this run: 0 containers, 0 processes, 0 mounts, 0 cgroups, 0 sockets, 0 folders" in done.stderr
