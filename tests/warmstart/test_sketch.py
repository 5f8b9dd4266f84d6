import random
from pathlib import Path
from typing import Any

import pytest

from clawexp.errors import HarnessError
from clawexp.warmstart.sketch import INSTRUCTION, READ, WROTE, Sketch, read_sketches, sketch_of, write_sketches

USER = f"[Sun 2026-11-29 17:56 UTC] {INSTRUCTION}\nsession 0f8fad5b-d9cb-469f-a165-70867728950e"


def request(**changed: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "Docs: /opt/x/node_modules/h/docs. Date: 2026-11-29"},
        {"role": "user", "content": [{"type": "text", "text": USER}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": changed.get("read", READ[1])},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": f"wrote {len(WROTE[1])} bytes to /work/{WROTE[0]}"},
    ]
    return {"messages": messages[: changed.get("turns", 6)], "tools": [{"type": "function"}]}


def test_a_sketch_holds_slots_where_the_task_stood() -> None:
    sketch = sketch_of("h", request())
    assert "{instruction}" in sketch.user
    assert INSTRUCTION not in sketch.user
    assert sketch.wrote == "wrote {size} bytes to /work/{path}"
    assert sketch.result("write", {"path": "o.txt", "content": "äb"}, {}) == "wrote 3 bytes to /work/o.txt"
    assert sketch.result("read", {"path": "i.txt"}, {"i.txt": "x"}) == "x"


def test_a_run_that_left_the_script_is_refused() -> None:
    with pytest.raises(HarnessError, match="turns"):
        sketch_of("h", request(turns=4))
    with pytest.raises(HarnessError, match="changes a file's content"):
        sketch_of("h", request(read="1: seven plums"))


def test_another_day_changes_dates_sessions_and_folders_only() -> None:
    sketch = sketch_of("h", request())
    other = sketch.varied(random.Random(1))
    assert other != sketch
    assert "0f8fad5b" not in other.user
    assert "2026-11-29" not in other.system + other.user
    assert "/opt/x" not in other.system
    assert other.system.startswith("Docs: /")
    assert other.system.endswith("/node_modules/h/docs. Date: " + other.system[-10:])


def test_sketches_are_read_as_they_were_written(tmp_path: Path) -> None:
    sketches: list[Sketch] = [sketch_of("h", request())]
    write_sketches(tmp_path / "s.json", sketches)
    assert read_sketches(tmp_path / "s.json") == sketches
