import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawexp.capture.journal import CallJournal, read_records
from clawexp.errors import ConfigError, JournalError
from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout, Verdict
from clawexp.run_folder import RunFolder, find_run, identity, run_folders, step_of

CONFIG: dict[str, Any] = {"steps": 4, "seed": 0, "algo": {"lr": 3e-4}, "harness": {"builtin": {"exits": {"2": "x"}}}}


def call(rollout_id: str, position: int = 0, parent: Call | None = None) -> Call:
    prompt = (*parent.prompt_ids, *parent.sampled_ids, 7) if parent else (1, 2)
    return Call(
        rollout_id=rollout_id,
        call_id=f"{rollout_id}/{position}",
        position=position,
        dialect="openai_chat",
        kind="main",
        cause="continue" if parent else "root",
        parent=parent.call_id if parent else None,
        shared=len(prompt) - 1 if parent else 0,
        prompt_ids=prompt,
        sampled_ids=(3, 9),
        logprobs=(-0.25, -1e-7),
        spans=(),
        finish_reason="stop",
        verdict="text",
        requested={"temperature": 0.2},
        submitted={"temperature": 1.0},
    )


async def gathered(folder: RunFolder, step: int, number: int = 0, head: str = "") -> Rollout:
    """A rollout whose two calls are in the journal."""
    name = f"{head}{step:05d}-t-builtin-{number}"
    first = call(name)
    calls = (first, call(name, 1, first))
    journal = CallJournal(folder.calls / f"{name}.log", syncer=None)
    for each in calls:
        await journal.commit(each, each.prompt_ids[each.shared :])
    journal.close()
    return Rollout(
        id=name,
        task_id="t",
        harness="builtin",
        step=step,
        number=number,
        seed=5,
        outcome=Outcome.TRUNCATED,
        reward=0.5,
        calls=calls,
        verdict=Verdict(score=0.5, checks={"exists": 1.0}, reason="half"),
        reason="its 60 s were over",
        times={"harness": 1.5},
        facts={"isolation": "none"},
    )


def begun(path: Path) -> RunFolder:
    folder = RunFolder(path=path)
    assert folder.begin(CONFIG) == 0
    folder.note_environment({"python": "3", "rendering": "abc"})
    return folder


async def run_steps(folder: RunFolder, steps: range, checkpoints: bool = True) -> None:
    """What a run leaves of some steps; a checkpoint after each."""
    for step in steps:
        folder.record(step, [await gathered(folder, step)], {}, {"learner/loss": step / 10})
        if checkpoints:
            folder.checkpoint(step + 1).mkdir()


def test_a_fresh_folder_holds_the_config_and_the_environment(tmp_path: Path) -> None:
    folder = begun(tmp_path / "deep" / "run")
    assert folder.config == CONFIG
    assert json.loads((folder.path / "environment.json").read_text()) == {"python": "3", "rendering": "abc"}
    assert folder.calls.is_dir()
    assert not folder.finished


async def test_what_a_step_consumed_is_read_back_as_it_was(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    done = await gathered(folder, 0)
    lost = replace(done, id="00000-t-builtin-1", outcome=Outcome.HARNESS_FAULT, reward=None, calls=(), verdict=None)
    lost = replace(lost, retried=(Outcome.ENGINE_FAULT,))
    folder.record(0, [done, lost], {done.id: 0.5}, {"learner/loss": 0.125, "reward/mean": math.nan})
    assert folder.rollouts(0) == [done, lost]
    assert folder.rollouts(1) == []
    assert folder.steps() == {
        0: {"kind": "step", "step": 0, "version": 0, "metrics": {"learner/loss": 0.125, "reward/mean": None}}
    }
    assert folder.last_metrics() == {"learner/loss": 0.125}


async def test_going_on_drops_what_belongs_to_steps_that_are_done_again(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(2))
    await run_steps(folder, range(2, 4), checkpoints=False)
    await gathered(folder, 4)
    (folder.calls / "00004-t-builtin-0.raw").touch()
    assert folder.begin(CONFIG) == 2
    assert sorted(folder.steps()) == [0, 1]
    assert sorted(path.stem for path in folder.calls.iterdir()) == ["00000-t-builtin-0", "00001-t-builtin-0"]
    await run_steps(folder, range(2, 3))
    assert [rollout.step for rollout in folder.rollouts(2)] == [2]


async def test_evaluations_from_the_step_that_is_gone_on_with_are_dropped_too(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(2))
    for step in (0, 1, 2, 3):
        await gathered(folder, step, head="eval-")
    assert folder.begin(CONFIG) == 2
    kept = sorted(path.stem for path in folder.calls.glob("eval-*"))
    assert kept == ["eval-00000-t-builtin-0", "eval-00001-t-builtin-0"]


async def test_an_evaluation_is_journalled_and_no_part_of_a_step(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(1))
    folder.record_evaluation(1, [await gathered(folder, 1, head="eval-")])
    lines = [record for record in read_records(folder.path / "rollouts.log") if record["kind"] == "evaluation"]
    assert [(line["step"], line["outcome"]) for line in lines] == [(1, "truncated")]
    assert folder.rollouts(1) == []
    assert folder.begin(CONFIG) == 1  # it will be made again
    assert not any(record["kind"] == "evaluation" for record in read_records(folder.path / "rollouts.log"))


async def test_a_run_does_not_go_on_where_conversations_become_other_tokens(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    folder.note_environment({"rendering": "another"})  # nothing was done yet
    await run_steps(folder, range(1))
    folder.note_environment({"rendering": "another"})
    with pytest.raises(ConfigError, match="another rendering of conversations"):
        folder.note_environment({"rendering": "abc"})


async def test_without_a_checkpoint_everything_is_done_again(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(2), checkpoints=False)
    await gathered(folder, 0, head="eval-")
    assert folder.begin(CONFIG) == 0
    assert folder.steps() == {}
    assert list(folder.calls.iterdir()) == []


async def test_a_torn_last_line_costs_that_line_alone(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(2))
    log = folder.path / "rollouts.log"
    log.write_bytes(log.read_bytes()[:-7])
    assert sorted(folder.steps()) == [0]
    assert folder.begin(CONFIG) == 2
    await run_steps(folder, range(2, 3))
    assert sorted(folder.steps()) == [0, 2]


async def test_a_line_that_was_changed_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(2))
    log = folder.path / "rollouts.log"
    log.write_bytes(log.read_bytes().replace(b'"reward":0.5', b'"reward":1.0', 1))
    with pytest.raises(JournalError, match=r"rollouts\.log, line 1: its checksum is wrong"):
        folder.rollouts(1)
    with pytest.raises(JournalError, match=r"rollouts\.log, line 1: its checksum is wrong"):
        folder.begin(CONFIG)


async def test_calls_that_are_gone_are_an_error(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    await run_steps(folder, range(1))
    log = folder.calls / "00000-t-builtin-0.log"
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(JournalError, match="00000-t-builtin-0 made 2 calls; its journal holds 1"):
        folder.rollouts(0)
    log.unlink()
    with pytest.raises(JournalError, match=r"00000-t-builtin-0\.log cannot be read"):
        folder.rollouts(0)


def test_a_folder_without_a_journal_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is this the folder of a run"):
        RunFolder(path=tmp_path).steps()


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for step in (9, 10, 100, 11):
        folder.checkpoint(step).mkdir()
    (folder.checkpoints / ".step-00200.partial").mkdir()
    folder.prune_checkpoints(2)
    assert folder.checkpoint_steps() == [11, 100]


def test_the_step_of_a_rollout_stands_in_its_id() -> None:
    assert step_of("00012-lookup-train-0-12-1-builtin-5") == 12
    assert step_of("eval-00003-lookup-eval-1-builtin-0-r1") == 3
    assert step_of("123456-t-builtin-0") == 123456


def test_what_a_killed_process_had_half_written_of_a_checkpoint_is_removed(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    (folder.checkpoints / ".step-00007.partial" / "optimiser").mkdir(parents=True)
    folder.begin(CONFIG)
    assert list(folder.checkpoints.iterdir()) == []


def test_a_longer_run_with_other_loggers_is_the_same_experiment() -> None:
    grown = {**CONFIG, "steps": 9, "resume": "auto", "logger": {"jsonl": {}}, "checkpoint_every": 5}
    assert identity(grown) == identity(CONFIG)
    assert identity({**CONFIG, "algo": {"lr": 1e-4}}) != identity(CONFIG)
    ranked = [{**CONFIG, "learner": {"num_ranks": 2, "token_budget": budget}} for budget in (8192, 64)]
    assert identity(ranked[0]) == identity(ranked[1]) != identity(CONFIG)
    assert identity({**CONFIG, "seed": 1}) != identity(CONFIG)


def test_auto_finds_the_newest_unfinished_run_of_the_experiment(tmp_path: Path) -> None:
    for age, (name, config) in enumerate(
        {"old": CONFIG, "newer": {**CONFIG, "steps": 9}, "done": CONFIG, "other": {**CONFIG, "seed": 1}}.items()
    ):
        folder = RunFolder(path=tmp_path / "2026-01-01" / name)
        folder.begin(config)
        os.utime(folder.path / "config.json", (age, age))
    RunFolder(path=tmp_path / "2026-01-01" / "done").finish()
    assert find_run("auto", {**CONFIG, "resume": "auto"}, tmp_path).path.name == "newer"
    shutil.rmtree(tmp_path / "2026-01-01" / "newer")
    assert find_run("auto", CONFIG, tmp_path).path.name == "old"
    shutil.rmtree(tmp_path / "2026-01-01" / "old")
    with pytest.raises(ConfigError, match="no unfinished run of this experiment below"):
        find_run("auto", CONFIG, tmp_path)


def test_a_run_can_be_named_even_when_it_is_finished(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    folder.finish()
    assert find_run(str(folder.path), {**CONFIG, "steps": 9, "resume": str(folder.path)}) == folder
    folder.begin(CONFIG)
    assert not folder.finished


def test_a_run_of_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    other = {**CONFIG, "algo": {"lr": 1e-4}, "seed": 7}
    with pytest.raises(ConfigError, match=r"another experiment; these differ: algo\.lr, seed$"):
        find_run(str(folder.path), other)
    with pytest.raises(ConfigError, match=r"these differ: critic, seed; it knows nothing of critic: .*another version"):
        find_run(str(folder.path), {**CONFIG, "critic": {}, "seed": 7})
    with pytest.raises(ConfigError, match=r"these differ: seed$"):
        find_run(str(folder.path), {key: value for key, value in CONFIG.items() if key != "seed"})
    with pytest.raises(ConfigError, match="no run there"):
        find_run(str(tmp_path), CONFIG)


def test_keys_that_json_makes_strings_are_no_difference(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    other = {**CONFIG, "harness": {"builtin": {"exits": {2: "x"}}}, "seed": 7}
    with pytest.raises(ConfigError, match=r"these differ: seed$"):
        find_run(str(folder.path), other)


def test_checkpoints_and_weights_are_not_taken_for_runs(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    for inside in (folder.checkpoint(1), folder.path / "weights"):
        inside.mkdir()
        (inside / "config.json").write_text("{}")
    assert list(run_folders(tmp_path)) == [folder]


def test_what_vanishes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    kept, gone = (RunFolder(path=tmp_path / name) for name in ("kept", "gone"))
    kept.begin(CONFIG)
    gone.begin(CONFIG)
    (gone.path / "config.json").unlink()
    (gone.path / "config.json").symlink_to("nowhere")
    assert run_folders(tmp_path) == [kept]


def test_a_run_that_a_process_still_runs_is_neither_found_nor_taken(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    holder = (
        "import sys, pathlib; from clawexp.run_folder import RunFolder\n"
        "with RunFolder(path=pathlib.Path(sys.argv[1])).held():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        assert folder.running
        with pytest.raises(ConfigError, match="that no process runs"):
            find_run("auto", CONFIG, tmp_path)
        with pytest.raises(ConfigError, match="another process still runs it"):
            find_run(str(folder.path), CONFIG)
        with pytest.raises(ConfigError, match="is still run by another process"), folder.held():
            pass
        other.kill()
    assert not folder.running
    assert find_run("auto", CONFIG, tmp_path) == folder


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    (folder.path / "config.json.new").write_text("half of an earlier try")
    folder.begin({**CONFIG, "steps": 5})
    assert folder.config["steps"] == 5
    assert not list(folder.path.glob("*.new"))
