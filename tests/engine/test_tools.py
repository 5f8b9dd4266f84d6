import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clawexp.engine.tools import NotOffered, Schema, offered_call

CALLS = {
    "read": ("read", {"path": "data/a.txt"}),
    "write": ("write", {"path": "data/a.txt", "content": "x"}),
    "edit": ("edit", {"path": "data/a.txt", "old": "x", "new": "y"}),
    "ls": ("ls", {"path": "data"}),
    "exec": ("exec", {"command": "make"}),
}


def tool(name: str, *arguments: str, required: tuple[str, ...] = (), **properties: Any) -> Schema:
    strings = {argument: {"type": "string"} for argument in arguments}
    return {"name": name, "parameters": {"properties": strings | properties, "required": [*arguments, *required]}}


@pytest.mark.parametrize(
    ("offered", "word", "expected"),
    [
        (tool("read", "path"), "read", ("read", {"path": "data/a.txt"})),
        (tool("Read", "file_path"), "read", ("Read", {"file_path": "data/a.txt"})),
        (tool("read_file", "absolute_path"), "read", ("read_file", {"absolute_path": "data/a.txt"})),
        (tool("Write", "file_path", "content"), "write", ("Write", {"file_path": "data/a.txt", "content": "x"})),
        (tool("list_directory", "dir_path"), "ls", ("list_directory", {"dir_path": "data"})),
        (tool("exec_command", "cmd"), "exec", ("exec_command", {"cmd": "make"})),
        (
            tool("edit", "filePath", "oldString", "newString"),
            "edit",
            ("edit", {"filePath": "data/a.txt", "oldString": "x", "newString": "y"}),
        ),
        (
            tool("run_shell_command", "command", required=("is_background",), is_background={"type": "boolean"}),
            "exec",
            ("run_shell_command", {"command": "make", "is_background": False}),
        ),
    ],
)
def test_a_call_gets_the_names_that_the_harness_has_for_it(offered: Schema, word: str, expected: Any) -> None:
    assert offered_call(CALLS[word], [tool("other", "x"), offered]) == expected


def test_an_edit_becomes_a_list_of_edits_where_the_tool_takes_one() -> None:
    items = {"type": "object", "properties": {"oldText": {}, "newText": {}}}
    offered = tool("edit", "path", required=("edits",), edits={"type": "array", "items": items})
    arguments = {"path": "data/a.txt", "edits": [{"oldText": "x", "newText": "y"}]}
    assert offered_call(CALLS["edit"], [offered]) == ("edit", arguments)


def test_a_shell_does_what_there_is_no_tool_for(tmp_path: Path) -> None:
    content = 'it\'s "5 %s"\n$HOME \\n `x`\n'
    for call, expected in (
        (("write", {"path": "deep/er/a b.txt", "content": content}), ""),
        (("read", {"path": "deep/er/a b.txt"}), content),
        (("ls", {"path": "deep/er"}), "a b.txt\n"),
    ):
        name, arguments = offered_call(call, [tool("bash", "command")])
        assert name == "bash"
        done = subprocess.run(["sh", "-c", arguments["command"]], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, expected)
    assert (tmp_path / "deep/er/a b.txt").read_text() == content


def test_a_patch_writes_what_ends_with_a_line_and_the_shell_the_rest() -> None:
    offered = [tool("exec_command", "cmd"), tool("apply_patch", "input")]
    patch = "*** Begin Patch\n*** Add File: a/b.txt\n+x\n+\n+ y\n*** End Patch\n"
    assert offered_call(("write", {"path": "a/b.txt", "content": "x\n\n y\n"}), offered) == (
        "apply_patch",
        {"input": patch},
    )
    for content in ("", "x\ny"):
        name, arguments = offered_call(("write", {"path": "b.txt", "content": content}), offered)
        assert name == "exec_command"
        assert "printf" in arguments["cmd"]


def test_a_word_of_its_own_must_be_offered_by_that_name() -> None:
    assert offered_call(("spawn", {"task": "t"}), [tool("spawn", "task")]) == ("spawn", {"task": "t"})
    with pytest.raises(NotOffered, match="'spawn', and the harness offers read, write"):
        offered_call(("spawn", {"task": "t"}), [tool("read", "path"), tool("write", "path", "content")])


def test_what_the_harness_cannot_do_is_said() -> None:
    with pytest.raises(NotOffered, match="'exec'"):
        offered_call(CALLS["exec"], [tool("read", "path")])
    with pytest.raises(NotOffered, match="no 'content'"):
        offered_call(CALLS["write"], [tool("write", "path")])
    with pytest.raises(NotOffered, match="requires"):
        offered_call(CALLS["read"], [tool("read", "path", required=("mode",), mode={"type": "integer"})])


def test_recorded_harnesses_offer_what_solutions_need(cases: Path) -> None:
    seen = 0
    for harness, offered in recorded(cases):
        for word in ("read", "write", "ls", "exec"):
            name, arguments = offered_call(CALLS[word], offered)
            (schema,) = [each for each in offered if each["name"] == name][:1]
            assert set(schema["parameters"].get("required", ())) <= arguments.keys(), (harness, word)
            seen += 1
    assert seen > 50


def recorded(cases: Path) -> Iterator[tuple[str, list[Schema]]]:
    """Harness and tools of every recorded request that offers a way to work on files."""
    for file in sorted((cases / "harness_requests").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            body = json.loads(line)["body"]
            tools = body.get("tools") if isinstance(body, dict) else None
            offered = [schema for tool in tools or () for schema in schemas(tool)]
            shells = {"bash", "exec", "run_shell_command", "exec_command"}
            if any(schema["name"].lower() in shells and schema["parameters"].get("properties") for schema in offered):
                yield file.stem, offered


def schemas(tool: dict[str, Any]) -> list[Schema]:
    """Of the four ways in which harnesses declare tools, one."""
    declared = tool.get("functionDeclarations") or [tool.get("function") or tool]
    keys = ("parameters", "input_schema", "parametersJsonSchema")
    return [
        {"name": each["name"], "parameters": next((each[key] for key in keys if key in each), {})}
        for each in declared
        if "name" in each
    ]
