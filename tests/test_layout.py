"""One name everywhere: what does a thing, what configures it and what tests it are called alike."""

import re
import shlex
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from clawexp.commands.compose import check

ROOT = Path(__file__).parents[1]
SHARED_TESTS = {
    # Seen through the HTTP that they serve, in one live proxy.
    "capture/addon.py": "capture/test_proxy.py",
    "capture/authority.py": "capture/test_interception.py",
    "capture/passage.py": "capture/test_interception.py",
    "capture/upstream.py": "capture/test_interception.py",
    "capture/way_in.py": "capture/test_interception.py",
    "capture/admin.py": "capture/test_boundary.py",
    "capture/caller.py": "capture/test_proxy.py",
    "capture/client.py": "capture/test_inbound.py",
    "capture/dialects/anthropic_answer.py": "capture/test_anthropic_messages.py",
    "capture/dialects/anthropic_content.py": "capture/test_anthropic_messages.py",
    "capture/dialects/dialect.py": "capture/test_proxy.py",
    "capture/dialects/fields.py": "capture/test_bad_input.py",
    "capture/dialects/gemini_contents.py": "capture/test_gemini.py",
    "capture/dialects/headers.py": "capture/test_proxy.py",
    "capture/dialects/models.py": "capture/test_proxy.py",
    "capture/dialects/openai_chat.py": "capture/test_proxy.py",
    "capture/dialects/openai_error.py": "capture/test_proxy.py",
    "capture/dialects/openai_items.py": "capture/test_openai_responses.py",
    "capture/dialects/openai_messages.py": "capture/test_proxy.py",
    "capture/dialects/openai_response.py": "capture/test_openai_responses.py",
    "capture/dialects/reply.py": "capture/test_bad_input.py",
    "capture/dialects/table.py": "capture/test_proxy.py",
    "capture/dialects/tools.py": "capture/test_openai_responses.py",
    "capture/dialects/turns.py": "capture/test_openai_responses.py",
    "capture/awaited.py": "capture/test_anthropic_messages.py",
    "capture/keep_alive.py": "capture/test_anthropic_messages.py",
    "capture/open_rollout.py": "capture/test_proxy.py",
    "capture/service.py": "capture/test_proxy.py",
    "capture/socket_server.py": "capture/test_proxy.py",
    "engine/routes.py": "engine/test_embedded.py",
    "engine/server.py": "engine/test_embedded.py",
    # Seen through what vLLM serves.
    "engine/inside_vllm/clawexp_inside_vllm.py": "engine/test_vllm.py",
    # Seen in the processes that they start.
    "launcher/point.py": "launcher/test_subprocess.py",
    "launcher/submission.py": "launcher/test_slurm.py",
    "launcher/sweep.py": "launcher/test_subprocess.py",
    # Parts of one thing, tested as that thing.
    "capture/exchange.py": "capture/test_conversation.py",
    "capture/history.py": "capture/test_conversation.py",
    "learner/rank.py": "learner/test_ranked_learner.py",
    "learner/sharded.py": "learner/test_ranked_learner.py",
    "capture/fork.py": "capture/test_conversation.py",
    "capture/message.py": "capture/test_conversation.py",
    "engine/cache.py": "engine/test_scheduler.py",
    "model/rms_norm.py": "model/test_decoder.py",
    "model/target_head.py": "model/test_tree_pass.py",
    "model/tree_attention.py": "model/test_tree_pass.py",
    "model/tree_policy.py": "model/test_hub_policy.py",
    "model/load.py": "model/test_hub_policy.py",
    "warmstart/initial.py": "warmstart/test_fit.py",
    "warmstart/rehearsal.py": "warmstart/test_fit.py",
    "runtime/compiled.py": "runtime/test_inside.py",
    "runtime/container.py": "runtime/test_podman.py",
    "runtime/folder_sandbox.py": "runtime/test_bubblewrap.py",
    "runtime/sentry.py": "runtime/test_oci.py",
    "runtime/far_sandbox.py": "runtime/test_hosts.py",
    "runtime/host_program.py": "runtime/test_hosts.py",
    "runtime/wire.py": "runtime/test_hosts.py",
    "runtime/furnish.py": "runtime/test_podman.py",
    "runtime/image_build.py": "runtime/test_task_images.py",
    "runtime/living.py": "runtime/test_bubblewrap.py",
    "runtime/podman_home.py": "runtime/test_podman_service.py",
    "runtime/rootless.py": "runtime/test_enclosure.py",
    "runtime/reaper_program.py": "runtime/test_reaping.py",
    "runtime/snapshot.py": "runtime/test_bubblewrap.py",
    # They need a whole run, and one serves them all.
    "commands/eval.py": "test_experiment.py",
    "commands/recorded.py": "capture/test_recorded.py",
    "commands/replay.py": "test_experiment.py",
    "evaluation.py": "test_experiment.py",
    "training.py": "test_imitation.py",
    "replay.py": "test_experiment.py",
}
UNTESTED = {
    "component.py": "a decorator that every component of every test went through",
    "errors.py": "names, and a look into a group of errors that test_rollout.py sees",
    "model/convert.py": "needs a released checkpoint of 90 MB",
    "outcome.py": "names alone",
    "records.py": "fields alone",
    "protocols.py": "signatures alone",
    "spec.py": "fields alone; what they refuse is in commands/test_compose.py",
}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "types"}


def files(folder: str, pattern: str) -> list[str]:
    """Paths below a top folder that match, but for what tools leave there."""
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob(pattern))
    return sorted(path.as_posix() for path in found if "__pycache__" not in path.parts)


def options() -> list[str]:
    """`algo/grpo.yaml` and so on."""
    return [name for name in files("conf", "*.yaml") if name != "config.yaml"]


def modules() -> list[str]:
    return [name for name in files("clawexp", "*.py") if Path(name).name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("module", [name for name in modules() if name not in UNTESTED])
def test_every_module_has_its_test(module: str) -> None:
    path = Path(module)
    room = path.parts[0] if len(path.parts) > 1 else "."
    own = [Path("tests", room, name) for name in (f"test_{path.stem}.py", f"test_{room}_{path.stem}.py")]
    shared = [Path("tests", SHARED_TESTS[module])] if module in SHARED_TESTS else []
    assert any((ROOT / test).is_file() for test in shared or own), f"{module} is tested by none of {own}"


def test_the_lists_of_this_file_name_modules_that_exist() -> None:
    assert {*SHARED_TESTS, *UNTESTED} <= set(modules())


COMPOSED = (
    "capture/rules/",
    "experiment/",
    "launcher/",
    "outcome/",
    "harness/mix",
    "harness/one_turn",
    "taskset/one_call",
)
"""Options that set keys, or choose options; no component is theirs."""


@pytest.mark.parametrize("option", options())
def test_every_option_names_a_component_of_its_own_name(option: str) -> None:
    config = OmegaConf.load(ROOT / "conf" / option)
    targets = [OmegaConf.select(config, f"{section}_target_") for section in ("", "model.", "launcher.")]
    target = next(filter(None, targets), None)
    if target is None:
        assert option.startswith(COMPOSED), f"{option} names no component"
        return
    component = get_class(target)
    own = "clawexp." + option.removesuffix(".yaml").replace("model/engine/", "engine/").replace("/", ".")
    assert component.__module__ in (own, "clawexp.spec", "clawexp.harness.profile")


@pytest.mark.parametrize("option", ["config.yaml", *options()])
def test_every_option_begins_with_a_line_that_uses_it(option: str) -> None:
    lines = (ROOT / "conf" / option).read_text().splitlines()
    first = lines[lines[0].startswith("# @package")]
    match = re.fullmatch(r"# python -m clawexp( \S.*)?", first)
    assert match, f"{option}: {first}"
    words = shlex.split(match.group(1) or "")
    check([word for word in words if word != "-m"], multirun="-m" in words)
    group = Path(option).parent.as_posix()
    if group != ".":
        used = (f"{group}=", f"{group}.", f"{group.replace('/', '.')}.")
        assert any(word.startswith(used) for word in words)


def test_no_name_is_vague() -> None:
    for folder in ("clawexp", "conf", "tests", "benchmarks", "launchers", "sweeps", "docs"):
        for name in files(folder, "*"):
            words = {re.sub(r"\.\w+$", "", part) for part in Path(name).parts}
            assert not words & VAGUE, f"{folder}/{name}"


def test_every_test_file_names_what_it_tests() -> None:
    known = {Path(name).stem for name in modules()} | {
        Path(name).parts[0] + "_" + Path(name).stem for name in modules()
    }
    known |= {"layout", "readme", "conf", "recorded", "bad_input", "interception", "hostile"}
    for name in files("tests", "test_*.py"):
        assert Path(name).stem.removeprefix("test_") in known, name
