import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from made_rollouts import call, rollout

from clawexp.capture.journal import CallJournal
from clawexp.capture.rendering import open_rendering
from clawexp.commands.compose import build, composed
from clawexp.demonstrations import Demonstrations, read_demonstrations
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import Imitating
from clawexp.records import Rollout
from clawexp.run_folder import RunFolder


def made(number: int, task: str, answer: int, reward: float | None = 1.0) -> Rollout:
    name = f"00000-{task}-builtin-{number}"
    one = call(f"c{number}", [1, 2], [answer], cause="root", rollout_id=name)
    return replace(rollout([one], name, number), task_id=task, reward=reward)


def journal(path: Path, rollouts: list[Rollout]) -> Path:
    """The folder of a run that made these rollouts in its first step."""
    folder = RunFolder(path=path)
    folder.begin({})
    rendering = open_rendering(checkpoint_folder("package:tiny"), "qwen3").digest
    (path / "environment.json").write_text(json.dumps({"rendering": rendering}))
    asyncio.run(commit(folder, rollouts))
    folder.record(0, rollouts, {}, {})
    return path


async def commit(folder: RunFolder, rollouts: list[Rollout]) -> None:
    for each in rollouts:
        with CallJournal(folder.calls / f"{each.id}.log", syncer=None) as log:
            for one in each.calls:
                await log.commit(one, one.prompt_ids)


def read(paths: list[Path], *words: str) -> Demonstrations:
    experiment = build(composed(["algo=sft", f"algo.runs=[{','.join(map(str, paths))}]", *words]))
    assert isinstance(experiment.algo, Imitating)
    return read_demonstrations(experiment, experiment.algo)


def answers(rollouts: Iterable[Rollout]) -> list[int]:
    return [each.calls[0].sampled_ids[0] for each in rollouts]


def test_rollouts_with_a_high_reward_are_imitated_once_each(tmp_path: Path) -> None:
    first = journal(tmp_path / "a", [made(0, "t", 5), made(1, "t", 5), made(2, "t", 6, 0.4), made(3, "t", 7, None)])
    second = journal(tmp_path / "b", [made(0, "t", 5), made(1, "t", 8, 0.5)])
    assert answers(read([first, second]).train) == [5]
    found = read([first, second], "algo.min_reward=0.5").train
    assert answers(found) == [5, 8]
    assert len({each.id for each in found}) == 2


def test_what_is_held_out_is_of_other_tasks_and_the_same_each_time(tmp_path: Path) -> None:
    run = journal(tmp_path / "a", [made(n, f"t{n % 10}", n) for n in range(20)])
    shown = read([run], "algo.held_out=0.3")
    tasks = [{each.task_id for each in part} for part in (shown.train, shown.held_out)]
    assert [len(part) for part in tasks] == [7, 3]
    assert not tasks[0] & tasks[1]
    assert read([run], "algo.held_out=0.3", "seed=9").held_out == shown.held_out
    assert read([run], "algo.held_out=0").held_out == ()


def test_each_pass_takes_every_rollout_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    run = journal(tmp_path / "a", [made(n, f"t{n}", n) for n in range(8)])
    shown = read([run], "algo.held_out=0", "algo.batch_rollouts=4")
    passes = [answers([*shown.of_step(2 * turn), *shown.of_step(2 * turn + 1)]) for turn in range(3)]
    assert all(sorted(each) == list(range(8)) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    again = read([run], "algo.held_out=0", "algo.batch_rollouts=4")
    assert answers(again.of_step(5)) == answers(shown.of_step(5))
    assert len(read([run], "algo.held_out=0").of_step(0)) == 8


def test_conversations_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    run = journal(tmp_path / "a", [made(0, "t", 5)])
    (run / "environment.json").write_text(json.dumps({"rendering": "other"}))
    with pytest.raises(ConfigError, match="conversations became other tokens than they do for package:tiny"):
        read([run])
