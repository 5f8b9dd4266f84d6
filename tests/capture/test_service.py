"""What a service does when something breaks that should not."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy.connection import ConnectionState

from clawexp.capture.addon import CaptureAddon
from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.message import Request
from clawexp.capture.open_rollout import Opening
from clawexp.capture.service import CaptureService, Incoming
from clawexp.errors import JournalError

TASK = {"role": "user", "content": "Read."}
CALLS: dict[str, tuple[str, dict[str, Any], int]] = {
    "openai_chat": ("/v1/chat/completions", {"messages": [TASK]}, 503),
    "openai_responses": ("/v1/responses", {"input": "Read."}, 503),
    "anthropic_messages": ("/v1/messages", {"messages": [TASK], "max_tokens": 9}, 529),
    "gemini": ("/v1beta/models/tiny:generateContent", {"contents": [{"parts": [{"text": "Read."}]}]}, 503),
}


class Broken:
    """Rules that have a mistake."""

    def request(self, request: Request) -> Request:
        raise ZeroDivisionError("a mistake of ours")


def service(*, keep_raw: bool = False) -> CaptureService:
    caller: Any = SimpleNamespace(model="tiny", context=2048, rendering=None, rules=Broken())
    return CaptureService(caller, max_calls=9, fsync=False, keep_raw=keep_raw)


def opening(folder: Path) -> Opening:
    return Opening(rollout_id="r", key="k", seed=1, temperature=1.0, journal=folder / "r.log")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", list(CALLS))
async def test_a_mistake_of_ours_is_told_in_the_dialect_counted_and_logged(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, body, status = CALLS[name]
    serving = service()
    await serving.open(opening(tmp_path))
    headers = {"authorization": "Bearer k"}
    served = await serving.serve(
        Incoming(
            asked=Asked(method="POST", path=path, query={}, headers=headers),
            body=json.dumps(body).encode(),
            dropped=0,
            key=None,
            until_gone=nullcontext(),
            may_ping=lambda ping: None,
        )
    )
    assert served.reply.status == status
    assert served.reply.headers["retry-after"]
    assert json.loads(served.reply.body)["error"]["message"]
    assert served.reply.late
    assert "ZeroDivisionError: a mistake of ours" in caplog.text
    counts = await serving.close("r")
    assert (counts["capture_faults"], counts["refused"]) == (1, 0)


async def test_a_rollout_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "r.raw").mkdir()  # where its requests should be kept
    serving = service(keep_raw=True)
    before = open_files()
    for _ in range(3):
        with pytest.raises(JournalError):
            await serving.open(opening(tmp_path))
    assert open_files() == before
    assert serving.rollouts == {}
    (tmp_path / "r.raw").rmdir()
    await serving.open(opening(tmp_path))
    await serving.close("r")


async def test_what_a_client_waited_for_does_not_begin_once_it_has_left() -> None:
    nothing: Any = None
    addon = CaptureAddon(nothing, nothing, nothing)
    client: Any = SimpleNamespace(id="c", state=ConnectionState.CLOSED)
    with pytest.raises(asyncio.CancelledError), addon.until_gone(client):
        pytest.fail("it began")
    client.state = ConnectionState.CAN_WRITE  # it has closed its own side, and reads
    with addon.until_gone(client):
        pass
