"""Requests that real harnesses sent, replayed in order; `--cases PATH` names the folder."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from clawexp.capture.recorded import Recorded, Replayer, causes
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import ConfigError

COUNTS: dict[str, dict[str, int]] = {
    # An empty reply is dropped and the task rewritten; a malformed call comes back as another; one helper.
    "claude-code": {"root": 9, "continue": 24, "rewrite": 2, "subagent": 1},
    # A cut stream is asked for again. Malformed calls are kept as they were.
    "codex": {"root": 6, "continue": 11, "retry": 1},
    "gemini-cli": {"root": 1, "continue": 5},
    # A malformed reply is dropped.
    "mini-swe-agent": {"root": 3, "continue": 7, "rewrite": 1},
    # A tail that is gone in the next request; an empty reply dropped, the task rewritten after a cut stream, a second
    # session; one helper; an announcement by a run with fewer tools.
    "openclaw": {"root": 9, "continue": 6, "reminder": 11, "rewrite": 3, "subagent": 1, "tool_schema": 1},
    # The conversation after the title that comes first; a malformed call that comes back as another.
    "opencode": {"root": 2, "continue": 5, "rewrite": 2},
    # A malformed call is repaired.
    "pi": {"root": 4, "continue": 7, "rewrite": 1},
    # A passing request to go on after a cut stream.
    "qwen-code": {"root": 2, "continue": 6, "rewrite": 1},
}
"""Counted by hand, from what each harness is known to do."""


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest, qwen3: Qwen3Rendering, tokenizer: Tokenizer) -> list[Recorded]:
    folder = request.config.getoption("--cases")
    if folder is None:
        pytest.skip("needs --cases PATH")
    return list(Replayer(rendering=qwen3, tokenizer=tokenizer).folder(folder / "harness_requests"))


def test_each_harness_forks_as_often_as_it_is_known_to_and_for_the_known_causes(recorded: list[Recorded]) -> None:
    assert {harness: dict(found) for harness, found in causes(recorded).items()} == COUNTS


def test_a_call_continues_another_just_when_it_begins_with_its_exact_ids(recorded: list[Recorded]) -> None:
    for run in recorded:
        sequences: list[list[int]] = []
        for exchange in run.exchanges:
            prompt = exchange.prompt.tolist()
            begun = [earlier for earlier in sequences if prompt[: len(earlier)] == earlier]
            assert bool(begun) == (exchange.cause == "continue")
            assert exchange.sequence is not None
            sequences.append(exchange.sequence.tolist())


@pytest.mark.parametrize(
    ("harness", "scenario", "causes"),
    [
        ("openclaw", "oc1", ["root", "reminder"]),
        ("openclaw", "oc-500x2", ["root", "continue"]),
        ("openclaw", "oc-emptyx1", ["root", "rewrite", "continue"]),
        # Cache marks move, and the last message is a block where it is a string later.
        ("claude-code", "claude1", ["root", "continue", "continue"]),
        # Tools are added in the middle of the list; they are deferred, so the prompt has them later.
        ("claude-code", "claude-ts", ["root", "continue", "continue", "continue"]),
        ("claude-code", "f-claude-emptyx1", ["root", "rewrite", "continue"]),
        ("codex", "codex-mitm", ["root", "continue", "continue"]),
        ("codex", "codex-cutx1", ["root", "retry", "continue"]),
        ("codex", "f-codex-badtoolx1", ["root", "continue"]),
        ("qwen-code", "qwen-cutx1", ["root", "rewrite", "continue"]),
    ],
)
def test_each_run_forks_where_it_is_known_to(
    recorded: list[Recorded], harness: str, scenario: str, causes: list[str]
) -> None:
    (run,) = [run for run in recorded if (run.harness, run.scenario) == (harness, scenario)]
    assert [exchange.cause for exchange in run.exchanges] == causes
    assert {exchange.kind for exchange in run.exchanges} == {"main"}


@pytest.mark.parametrize(("harness", "scenario", "helper"), [("openclaw", "gw1", 1), ("claude-code", "claude-git", 6)])
def test_a_helper_is_told_from_the_conversation_that_started_it(
    recorded: list[Recorded], harness: str, scenario: str, helper: int
) -> None:
    (run,) = [run for run in recorded if (run.harness, run.scenario) == (harness, scenario)]
    assert [index for index, each in enumerate(run.exchanges) if each.kind == "auxiliary"] == [helper]
    assert run.exchanges[helper].cause == "subagent"


def row(reply: Any, *messages: Any, scenario: str = "one") -> str:
    body = {"messages": [{"role": "user", "content": "Read."}, *messages]}
    path = "/v1/chat/completions?x=1"
    told = {"harness": "mine", "scenario": scenario, "method": "POST", "path": path, "headers": [["Host", "x"]]}
    return json.dumps({**told, "body": body, "reply": reply})


def test_the_table_has_a_line_per_harness_and_a_column_per_cause(
    tmp_path: Path, command_line: Callable[..., CompletedProcess[str]]
) -> None:
    said = {"role": "assistant", "content": "Fine."}
    lines = [row(said), row(500), row(said, said, {"role": "user", "content": "Go on."}), row(said, scenario="two")]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    done = command_line("replay", "--requests", str(tmp_path))
    assert done.stdout.splitlines() == [
        "harness  calls  root  continue",
        "mine         3     2         1",
        "all          3     2         1",
    ]


def test_a_folder_without_recorded_requests_is_refused(
    tmp_path: Path, qwen3: Qwen3Rendering, tokenizer: Tokenizer
) -> None:
    replayer = Replayer(rendering=qwen3, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="no recorded requests"):
        list(replayer.folder(tmp_path))
    (tmp_path / "mine.jsonl").write_text('{"harness": "mine"}')
    with pytest.raises(ConfigError, match="scenario is missing"):
        list(replayer.folder(tmp_path))
