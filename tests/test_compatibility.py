"""Every combination of options: it can be started, or is refused with both sides named."""

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from made_experts import upcycled

from clawexp.commands.arguments import conf_folder, groups
from clawexp.commands.compose import check, composed, instantiated
from clawexp.commands.plan import planned
from clawexp.compatibility import clashes
from clawexp.errors import ConfigError
from clawexp.harness import pip
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.records import Image, Sandbox, Task, Verdict
from clawexp.runtime.task_image import PYTHON_VERSION
from clawexp.spec import Experiment

CROSSED = ("taskset", "harness", "runtime", "model", "model/engine", "algo", "launcher")
"""Groups whose options need or give something. Of the others every option goes with everything."""

MUST_BE_SAID = {"algo=sft": ["algo.runs=[earlier]"]}
"""Of options that have no default for everything."""


def options(group: str) -> list[str]:
    return groups(conf_folder())[group]


@cache
def alone(group: str, option: str) -> Experiment:
    """The default experiment with one other choice, whether or not it goes with the defaults."""
    chosen = f"{group}={option}"
    return instantiated(composed([chosen, *MUST_BE_SAID.get(chosen, [])]))


def crossed(choice: dict[str, str]) -> Experiment:
    """The experiment with all of these choices; composing each anew would take minutes."""
    plain = {group: option for group, option in choice.items() if group != "model/engine"}
    parts: dict[str, Any] = {group: getattr(alone(group, option), group) for group, option in plain.items()}
    engine = alone("model/engine", choice["model/engine"]).model.engine
    return replace(alone("algo", "grpo"), **{**parts, "model": replace(parts["model"], engine=engine)})


def every_choice() -> list[dict[str, str]]:
    found = itertools.product(*(options(group) for group in CROSSED))
    return [dict(zip(CROSSED, names, strict=True)) for names in found]


def test_every_combination_of_options_resolves_or_is_refused_with_both_sides_named() -> None:
    possible = 0
    for choice in every_choice():
        experiment = crossed(choice)
        refused = list(clashes(experiment))
        for clash in refused:
            assert len(clash.sides.split()) == 2
            assert "use " in clash.why or "choose " in clash.why, clash
        if not refused:
            assert any(line.startswith(("would start", "would learn")) for line in planned(experiment))
            possible += 1
    assert possible > len(every_choice()) / 4


@pytest.mark.parametrize(
    ("words", "sides", "why"),
    [
        (["harness=pi", "runtime=local"], "harness=pi runtime=local", "use runtime=bubblewrap"),
        (["harness=pi", "model.context=1024"], "harness=pi model=tiny", "model.context is 1024"),
        (["harness=pi", "harness.pi.dialect=bedrock"], "harness=pi", "capture=default"),
        (["model=smollm2_135m", "model/engine=scripted"], "model/engine=scripted", "model.rendering=qwen3"),
    ],
)
def test_what_does_not_go_together_is_refused_in_the_words_of_the_command_line(
    words: list[str], sides: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(words)
    assert sides in str(refused.value)
    assert why in str(refused.value)


def test_routing_that_cannot_be_replayed_is_refused_unless_the_learner_decides_itself(tmp_path: Path) -> None:
    checkpoint = upcycled(checkpoint_folder("package:tiny"), tmp_path / "experts")
    mixture = f"model.path={checkpoint}"
    check([mixture])
    gpu = ["model/engine=vllm", "model.engine.device=cuda"]
    check([mixture, *gpu, "++model.engine.cuda.options.enable_return_routed_experts=true"])
    for words in (gpu, ["model/engine=vllm", "model.engine.device=cpu"], ["learner=lora"]):
        with pytest.raises(
            ConfigError, match=r"learner\.routing=replay model/engine=\w+.* choose learner\.routing=own"
        ):
            check([mixture, *words])
        check([mixture, *words, "learner.routing=own"])


def test_what_the_user_accepts_is_not_refused() -> None:
    check(["harness=pi", "runtime=local", "runtime.allow_unsafe=true"])


class Imaged:
    """A taskset of one task, which needs its own image."""

    def train(self, step: int, num_tasks: int, seed: int) -> list[Task]:
        return []

    def evaluation(self, num_tasks: int) -> list[Task]:
        return []

    def places(self) -> list[Task]:
        image = Image(context=Path("environment"), required=True)
        return [Task(id="t", instruction="", files={}, grader=AlwaysRight(), split="train", image=image)]


class AlwaysRight:
    async def grade(self, sandbox: Sandbox) -> Verdict:
        return Verdict(score=1.0)


def test_packages_for_another_python_than_an_image_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = {"taskset": "workbench", "harness": "mini_swe_agent", "runtime": "podman", "model": "tiny"}
    experiment = crossed({**choice, "model/engine": "embedded"})
    monkeypatch.setattr(pip, "MINOR", PYTHON_VERSION)
    assert list(clashes(experiment)) == []
    (clash,) = clashes(replace(experiment, taskset=Imaged()))
    assert clash.sides == "harness=mini_swe_agent taskset=imaged"
    assert "task t brings an image of its own" in clash.why
    monkeypatch.setattr(pip, "MINOR", "3.9")
    (clash,) = clashes(experiment)
    assert clash.sides == "harness=mini_swe_agent runtime=podman"
    assert "Python 3.9" in clash.why
