"""A known solution's calls -> calls of the tools that a harness offers, whatever it calls them.

Solutions are written in the words `read`, `write`, `edit`, `ls` and `exec`. Where a harness has no tool of its own for
one of them, a patch or the shell does it; a call in any other word must be offered by that very name.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

ToolCall = tuple[str, Mapping[str, Any]]
"""`("read", {"path": "a.txt"})`"""
Schema = Mapping[str, Any]
"""A function tool as harnesses declare it: name, and parameters as a JSON schema."""


class NotOffered(Exception):
    """No tool of the harness can carry out a call; the text says which."""


@dataclass(frozen=True)
class Verb:
    """What a word of solutions is called elsewhere; names in lower case, letters alone."""

    tools: tuple[str, ...]
    arguments: Mapping[str, tuple[str, ...]]


PATH = ("path", "filepath", "absolutepath", "filename", "file")
OLD = ("old", "oldtext", "oldstring", "oldstr")
NEW = ("new", "newtext", "newstring", "newstr")
VERBS: Mapping[str, Verb] = {
    "read": Verb(("read", "readfile", "viewfile"), {"path": PATH}),
    "write": Verb(
        ("write", "writefile", "createfile"), {"path": PATH, "content": ("content", "contents", "text", "filetext")}
    ),
    "edit": Verb(("edit", "editfile", "replace", "strreplace"), {"path": PATH, "old": OLD, "new": NEW}),
    "ls": Verb(("ls", "list", "listdirectory", "listdir", "listfiles"), {"path": (*PATH, "dirpath", "directory")}),
    "exec": Verb(("exec", "bash", "runshellcommand", "execcommand", "shell"), {"command": ("command", "cmd")}),
}


def _write(path: str, content: str) -> str:
    folder = shlex.quote(str(PurePosixPath(path).parent))
    return f"mkdir -p {folder} && printf %s {shlex.quote(content)} > {shlex.quote(path)}"


SHELL: Mapping[str, Callable[..., str]] = {
    "read": lambda path: f"cat {shlex.quote(path)}",
    "write": _write,
    "ls": lambda path: f"ls {shlex.quote(path)}",
}
"""Shell commands for words that a harness may have no tool for."""

PATCH = ("applypatch",)
"""Codex's tool for all that changes files. It knows lines alone, so files that end without one are the shell's."""


def _added(path: str, content: str) -> str:
    lines = "".join(f"+{line}\n" for line in content.removesuffix("\n").split("\n"))
    return f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"


def offered_call(call: ToolCall, offered: Sequence[Schema]) -> ToolCall:
    """The same call in the harness's words. Raises NotOffered."""
    word, arguments = call
    verb = VERBS.get(word)
    tool = _find(offered, verb.tools if verb else (_letters(word),))
    if tool is not None and verb is None:
        return tool["name"], arguments
    if tool is not None and verb is not None:
        return tool["name"], _fill(tool, word, verb, arguments)
    patch = _find(offered, PATCH)
    if word == "write" and patch is not None and arguments["content"].endswith("\n"):
        return patch["name"], {"input": _added(**arguments)}
    if word in SHELL:
        return offered_call(("exec", {"command": SHELL[word](**arguments)}), offered)
    names = ", ".join(tool["name"] for tool in offered)
    raise NotOffered(f"the solution calls {word!r}, and the harness offers {names}")


def _find(offered: Sequence[Schema], names: Sequence[str]) -> Schema | None:
    """The tool with the first of these names; a harness may have several of them."""
    found = {_letters(tool["name"]): tool for tool in reversed(offered)}
    return next((found[name] for name in names if name in found), None)


def _fill(tool: Schema, word: str, verb: Verb, arguments: Mapping[str, Any]) -> dict[str, Any]:
    parameters = tool.get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    if "edits" in properties and "old" in arguments:  # a list of replacements in one file
        item = {"properties": properties["edits"].get("items", {}).get("properties", {})}
        change = _renamed(item, word, verb, {name: arguments[name] for name in ("old", "new")})
        filled = _renamed(parameters, word, verb, {"path": arguments["path"]}) | {"edits": [change]}
    else:
        filled = _renamed(parameters, word, verb, arguments)
    missing = [name for name in parameters.get("required") or () if name not in filled]
    return filled | {name: _anything(properties.get(name, {}), tool, word) for name in missing}


def _renamed(parameters: Schema, word: str, verb: Verb, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {_letters(name): name for name in parameters.get("properties") or ()}
    renamed: dict[str, Any] = {}
    for argument, value in arguments.items():
        names = verb.arguments.get(argument, ())
        name = next((known[name] for name in names if name in known), None)
        if name is None:
            raise NotOffered(f"the harness's tool for {word!r} takes {', '.join(known) or 'nothing'}, no {argument!r}")
        renamed[name] = value
    return renamed


def _anything(schema: Mapping[str, Any], tool: Schema, word: str) -> Any:
    """A value for an argument that the tool requires and the solution knows nothing of."""
    fitting = {"string": word, "boolean": False}
    if schema.get("type") not in fitting:
        raise NotOffered(f"the harness's tool {tool['name']!r} requires {json.dumps(schema)} besides what is known")
    return fitting[schema["type"]]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
