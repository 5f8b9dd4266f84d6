import json
from pathlib import Path
from typing import Any

import openai
import pytest
from stub_engine import model_of, options_of, serve_stub

from clawexp.capture.boundary import boundary
from clawexp.capture.conversation import Conversation
from clawexp.capture.journal import CallJournal
from clawexp.capture.message import Reply
from clawexp.capture.open_rollout import Opening, OpenRollout
from clawexp.capture.raw import RawLog, raw_path, read_raw
from clawexp.capture.rendering import Qwen3Rendering
from clawexp.capture.tokenizer import Tokenizer
from clawexp.errors import JournalError


async def talked(tokenizer: Tokenizer, checkpoint: Path, folder: Path, *, keep_raw: bool) -> tuple[Path, str]:
    """A plain call, a streamed one and a refused request; where the raw file would be, and the rollout's key."""
    options, model = options_of(keep_raw=keep_raw), model_of(checkpoint)
    async with serve_stub(tokenizer) as engine, boundary(options, model, engine.url, "secret", folder) as live:
        key = await live.open("r", seed=1)
        task: Any = {"role": "user", "content": f"My key is {key}."}
        url = f"http://127.0.0.1:{live.door('r').port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            await client.chat.completions.create(model="tiny", messages=[task])
            async for _ in await client.chat.completions.create(model="tiny", messages=[task, task], stream=True):
                pass
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="tiny", messages=[])
        assert len((await live.close("r")).calls) == 2
        return raw_path(live.journal("r")), key


async def test_requests_and_answers_are_kept_as_they_were_sent_but_for_the_key(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    path, key = await talked(tokenizer, checkpoint, tmp_path, keep_raw=True)
    plain, streamed = read_raw(path)
    assert (plain.call_id, streamed.call_id) == ("r/0", "r/1")
    assert (plain.path, plain.status) == ("/v1/chat/completions", 200)
    assert json.loads(plain.request)["messages"] == [{"role": "user", "content": "My key is ***."}]
    assert json.loads(plain.reply)["choices"][0]["message"]["content"] == "ok"
    assert streamed.reply.startswith(b"data: {")
    assert streamed.reply.rstrip().endswith(b"data: [DONE]")
    assert key not in f"{plain}{streamed}{path.read_text()}"

    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert [each.call_id for each in read_raw(path)] == ["r/0"]
    path.write_bytes(content.replace(b'"r/0"', b'"r/9"'))
    with pytest.raises(JournalError, match="line 1"):
        list(read_raw(path))


async def test_nothing_is_kept_unless_the_experiment_asks(
    tokenizer: Tokenizer, checkpoint: Path, tmp_path: Path
) -> None:
    path, _ = await talked(tokenizer, checkpoint, tmp_path, keep_raw=False)
    assert sorted(file.name for file in path.parent.iterdir()) == ["r.log"]


async def test_a_raw_file_that_cannot_be_written_is_given_up_and_nothing_else(
    qwen3: Qwen3Rendering, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening(rollout_id="r", key="k", seed=1, temperature=1.0, journal=tmp_path / "r.log")
    journal = CallJournal(opening.journal, syncer=None)
    raw = RawLog(Path("/dev/full"), "k")
    rollout = OpenRollout(opening=opening, conversation=Conversation(qwen3), journal=journal, raw=raw)
    for _ in range(2):
        await rollout.keep_raw("r/0", "/v1/messages", b"asked", Reply(status=200, headers={}, body=b"told"))
    assert caplog.text.count("nothing more of it is kept raw") == 1
    assert rollout.summary()["raw_lost"] == 1
    rollout.close()
