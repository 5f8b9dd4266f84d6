"""How one harness words a conversation: its own text around an instruction, a file's content and a tool's report.

A sketch is recorded from one real run of the harness against a scripted model, and then filled with other tasks.
"""

import json
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clawexp.errors import HarnessError

INSTRUCTION = "Read quince.txt and write what it says to walnut.txt."
READ = ("quince.txt", "seven plums")
WROTE = ("walnut.txt", "seven plums")

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_INSTALLED = re.compile(r"(?:/[\w.@-]+)+(?=/node_modules)")
_CLOCK = re.compile(r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\d{4}-\d\d-\d\d) \d\d:\d\d")


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """`Sketch(harness="pi", system="You are ...", tools=[...], user="{instruction}", wrote="wrote {size} ...")`"""

    harness: str
    system: str
    tools: Sequence[Mapping[str, Any]]
    user: str
    """With `{instruction}`."""
    wrote: str
    """What the write tool reports, with `{size}` and `{path}`."""

    def varied(self, rng: random.Random) -> "Sketch":
        """The same harness on another day, in another session, installed in another folder."""
        date = f"20{rng.randint(24, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
        clock = f"[{rng.choice(_DAYS)} {date} {rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        session = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        user = _CLOCK.sub(clock, _UUID.sub(session, self.user))
        folder = "/".join(["", *(f"{rng.getrandbits(24):x}" for _ in range(rng.randint(1, 5)))])
        return Sketch(
            harness=self.harness,
            system=_INSTALLED.sub(folder, _DATE.sub(date, self.system)),
            tools=self.tools,
            user=user,
            wrote=self.wrote,
        )

    def user_text(self, instruction: str) -> str:
        return self.user.replace("{instruction}", instruction)

    def result(self, tool: str, arguments: Mapping[str, Any], files: Mapping[str, str]) -> str:
        """What the harness's tool answers."""
        if tool == "read":
            return files[arguments["path"]]
        size = len(arguments["content"].encode())
        return self.wrote.replace("{size}", str(size)).replace("{path}", arguments["path"])


def sketch_of(harness: str, request: Mapping[str, Any]) -> Sketch:
    """The sketch in the last request of the scripted run: instruction, read, write. Raises HarnessError."""
    messages = [(m["role"], _text(m.get("content"))) for m in request["messages"]]
    roles = [role for role, _ in messages]
    if roles != ["system", "user", "assistant", "tool", "assistant", "tool"]:
        raise HarnessError(f"{harness}: the scripted run gave the turns {roles}; a sketch needs one read and one write")
    if messages[3][1].strip() != READ[1]:
        raise HarnessError(f"{harness}: its read tool changes a file's content: {messages[3][1]!r}")
    size = str(len(WROTE[1].encode()))
    return Sketch(
        harness=harness,
        system=messages[0][1],
        tools=request["tools"],
        user=messages[1][1].replace(INSTRUCTION, "{instruction}"),
        wrote=re.sub(rf"\b{size}\b", "{size}", messages[5][1]).replace(WROTE[0], "{path}"),
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def write_sketches(path: Path, sketches: Sequence[Sketch]) -> None:
    path.write_text(json.dumps([asdict(s) for s in sketches], indent=1))


def read_sketches(path: Path) -> list[Sketch]:
    return [Sketch(**s) for s in json.loads(path.read_text())]
