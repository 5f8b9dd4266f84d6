import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from clawexp.commands.compose import build, check, composed, resolved
from clawexp.errors import ConfigError

Run = Callable[..., subprocess.CompletedProcess[str]]


def refusal(*overrides: str, multirun: bool = False) -> str:
    """What is said to these overrides."""
    with pytest.raises(ConfigError) as raised:
        check(overrides, multirun=multirun)
    return str(raised.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algo.lrr=1", "no such key; did you mean algo.lr?"),
        ("lr=1", "no such key; did you mean algo.lr?"),
        ("stpes=1", "no such key; did you mean steps?"),
        ("eval.foo=1", "no such key; eval has num_tasks, rollouts, every, temperature"),
        ("model.engine.foo=1", "no such key; did you mean model.engine.slots?"),
        ("algo.lr.x=1", "no such key; did you mean algo.lr?"),
        ("+foo=1", "no such key"),
        ("++foo=1", "no such key"),
        ("~foo", "no such key"),
        ("harness=opencalw", "no such harness; did you mean openclaw?"),
        ("harness=[builtin,pii]", "no such harness; did you mean pi?"),
        ("harness=null", "no such harness; choose one of builtin"),
        ("harness=[]", "choose at least one of builtin"),
        ("model/engine=embeded", "no such model/engine; did you mean embedded?"),
        ("experiment=foo", "no such experiment"),
        ("experiment=null", "no such experiment"),
        ("algo.lr=inf", "algo.lr"),
        ("algo.betas=[0.9,3]", "algo.betas.1"),
        ("algo={lr: 1}", "no such algo"),
        ("model.engine={slots: 1}", "is a section, not a value; set one of its keys, such as model.engine.slots"),
        ("steps=-1", "should be greater than or equal to 1 (it is -1)"),
        ("steps=abc", "should be a valid integer"),
        ("steps=1.5", "should be a valid integer"),
        ("steps=", "should be a valid integer"),
        ("steps=null", "should be a valid integer (it is None)"),
        ("steps=???", "has no value"),
        ("~steps", "has no value"),
        ("~algo.lr", "has no value"),
        ("capture.temperature=0", "should be greater than 0 (it is 0)"),
        ("rollout.memory_share=2", "should be less than or equal to 1"),
        ("outcome.truncated=maybe", "should be 'reward', 'zero', 'exclude', 'retry' or 'abort'"),
        ("~outcome.truncated", "none is given for truncated"),
        ("algo.betas=[0.9]", "Field required"),
        ("taskset.families=[nonsense]", "level 1 has no family nonsense"),
        ("algo._target_=foo.Bar", "names no component"),
        ("algo._target_=os.path", "names no component"),
        ("~algo._target_", "names no component"),
        ("~_target_", "names no component"),
        ("logger=[jsonl", "not an override"),
        ("model.name=a=b", "not an override"),
        ("algo.lr=1,2", "several values; add -m"),
        ("harness=builtin,pi", "several values; add -m"),
        ("+algo.lr=1", "An item is already at 'algo.lr'"),
        ("harness@x=builtin", "Could not override 'harness@x'"),
        ("algo.lr=${nonsense}", "Interpolation key 'nonsense' not found"),
        ("algo.lr=${seed}", "should be greater than 0 (it is 0)"),
        ("hydra.foo=1", "Could not override 'hydra.foo'"),
        ("hydra/launcher=foo", "Could not find 'hydra/launcher/foo'"),
    ],
)
def test_a_wrong_override_is_refused_with_one_reason(override: str, said: str) -> None:
    text = refusal(override)
    assert text.startswith("1 problem in the experiment; nothing was started\n")
    assert said in text


@pytest.mark.parametrize(
    "override",
    [
        "algo.lr=1e-4",
        "++algo.lr=1e-4",
        "harness=[builtin,pi]",
        "logger=[jsonl]",
        "logger=jsonl",
        "num_tasks=null",
        "num_tasks=3",
        "algo.betas=[0.5,0.5]",
        "taskset.families=[lookup]",
        "taskset.families=[]",
        "outcome.truncated=zero",
        "model.max_tokens=${model.context}",
        "hydra.run.dir=somewhere",
        "model.name='a=b'",
        "logger.jsonl.file='a b'",
    ],
)
def test_a_right_override_is_accepted(override: str) -> None:
    check([override])


def test_all_problems_of_a_line_are_listed_together() -> None:
    text = refusal(
        *("algo.lrr=1", "harness=opencalw", "steps=-1", "model.engine.foo=1", "~outcome.completed"),
        *("taskset.families=[x]", "seed=1,2", "a"),
    )
    first, *lines = text.splitlines()
    assert first == "8 problems in the experiment; nothing was started"
    heads = [line.split("  ")[1] for line in lines]
    assert sorted(heads) == sorted(
        ["a", "seed=1,2", "harness=opencalw", "algo.lrr=1", "model.engine.foo=1", "taskset", "outcome", "steps=-1"]
    )


def test_every_value_of_a_sweep_is_checked() -> None:
    check(["algo.lr=1e-4,3e-4", "harness=builtin,pi", "seed=range(0,3)"], multirun=True)
    assert "it is 'abc'" in refusal("algo.lr=1e-4,abc", multirun=True)
    assert "no such algo; choose one of grpo, ppo, sft" in refusal("algo=grpo,dqn", multirun=True)
    assert "(it is 0)" in refusal("steps=range(2,-1,-1)", multirun=True)
    assert "sweeps over no value" in refusal("seed=range(3,1)", multirun=True)
    assert "sweeps over no value" in refusal("harness=glob(zz*)", multirun=True)
    check(["harness=glob(*)"], multirun=True)


def test_two_problems_in_one_sweep_are_both_listed() -> None:
    assert refusal("steps=0,1,-1", multirun=True).startswith("2 problems")


def test_the_defaults_are_sound_and_every_option_of_every_group_builds() -> None:
    experiment = build(composed([]))
    assert set(experiment.harness) == {"builtin"}
    for harness in ("builtin", "pi", "openclaw"):
        assert set(build(composed([f"harness={harness}"])).harness) == {harness}
    assert set(build(composed(["harness=[builtin,pi]", "logger=[jsonl,console]"])).logger) == {"jsonl", "console"}
    for group, options in {"model": ("tiny", "smollm2_135m"), "runtime": ("auto", "bubblewrap", "local")}.items():
        for option in options:
            build(composed([f"{group}={option}"]))


def test_a_model_may_suit_the_numbers_to_its_size_and_the_user_has_the_last_word() -> None:
    assert composed(["model=smollm2_135m"]).steps == 30
    assert composed(["model=smollm2_135m", "steps=2"]).steps == 2


def test_a_config_read_back_from_json_builds_the_same_experiment() -> None:
    plain = resolved(composed(["harness=[builtin,openclaw]"]))
    assert "hydra" not in plain
    assert build(OmegaConf.create(plain)) == build(composed(["harness=[builtin,openclaw]"]))


def test_a_primary_config_of_the_users_own_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [config, _self_]\nsteps: -3\n")
    with pytest.raises(ConfigError, match=r"steps +should be greater"):
        check([], str(tmp_path), "mine")
    with pytest.raises(ConfigError, match="Cannot find primary config 'other'"):
        check([], str(tmp_path), "other")
    with pytest.raises(ConfigError, match="config directory"):
        check([], str(tmp_path / "nowhere"), "mine")


RULE = """defaults: [config, _self_]
capture:
  rules:
    mine:
      clock: {_target_: clawexp.rule.Replace, part: user, tools: null, pattern: "((", by: ""}
      log: {_target_: clawexp.rule.Block, part: user, tools: bash, pattern: x, notice: ""}
"""


def test_wrong_rules_are_listed_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RULE)
    with pytest.raises(ConfigError) as refused:
        check([], str(tmp_path), "mine")
    assert "capture.rules.mine.clock.pattern  is no regular expression: missing )" in str(refused.value)
    assert "capture.rules.mine.log            tools: goes with part tool_result" in str(refused.value)
    (tmp_path / "mine.yaml").write_text(RULE.replace("log:", "clock:"))
    with pytest.raises(ConfigError, match="found duplicate key clock"):
        check([], str(tmp_path), "mine")


def test_a_refusal_is_two_lines_and_costs_no_torch(command_line: Run, tmp_path: Path) -> None:
    done = command_line("algo.lrr=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "clawexp: 1 problem in the experiment; nothing was started",
        "  algo.lrr=1  no such key; did you mean algo.lr?",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["steps=-1"], ["--dry-run"], ["resume=auto"], ["eval", "resume=nowhere"], ["replay", "nowhere"], ["reap"]]
)
def test_nothing_heavy_is_imported_before_a_run_is_known_to_be_possible(words: list[str], tmp_path: Path) -> None:
    program = (
        "import sys, clawexp.__main__ as line\n"
        "try: line.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'tensordict', 'transformers', 'mitmproxy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
