"""Clients of any manners, by bare sockets; each time another rollout calls all the while and notices nothing."""

import asyncio
import gzip
import json
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest
from bench import Bench, undisturbed

from clawexp.capture.inbound import HEAD_S, LONGEST_HEAD

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
PATIENCE_S = 30.0
"""Nothing here takes as long; what does, hangs."""
Live = Bench[None]


@pytest.fixture(scope="module")
def connect() -> Callable[[str, str], AbstractAsyncContextManager[None]]:
    return lambda url, key: nullcontext()


def asking(text: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


def request(key: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {CHAT} HTTP/{version}", "host: model", f"authorization: Bearer {key}"]
    sized = [*lines, "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*sized, "", ""]).encode() + body


@asynccontextmanager
async def opened(
    bench: Live, *, unix: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    door = bench.boundary.door("")
    opening = asyncio.open_unix_connection(door.socket) if unix else asyncio.open_connection("127.0.0.1", door.port)
    reader, writer = await opening
    async with asyncio.timeout(PATIENCE_S):
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def fill(writer: asyncio.StreamWriter) -> None:
    """Send without end. Raises ConnectionError once nobody takes it."""
    while True:
        writer.write(b"x" * 2**16)
        await writer.drain()
        await asyncio.sleep(0)


def answer(received: bytes) -> tuple[int, Any]:
    """Status and JSON of a whole response, with what may stand before it taken off."""
    head, _, body = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), json.loads(body)


async def said(bench: Live, sent: bytes) -> bytes:
    """All that comes back on a connection of its own until the other side closes it."""
    async with opened(bench) as (reader, writer):
        writer.write(sent)
        return await reader.read()


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_its_side_behind_the_request_gets_its_answer(
    bench: Live, unix: bool, stream: bool
) -> None:
    rollout_id, _ = await bench.open()
    bench.engine.release = asyncio.Event()
    async with undisturbed(bench), opened(bench, unix=unix) as (reader, writer):
        writer.write(request(bench.key, asking("Half.", stream=stream)))
        writer.write_eof()
        await bench.engine.arrived.acquire()
        await asyncio.sleep(0.3)
        assert not bench.engine.cancelled.is_set()
        bench.engine.release.set()
        received = await reader.read()  # to the end: after the answer the connection is closed
    assert b"HTTP/1.1 200" in received
    assert b"ok" in received
    closed = await bench.boundary.close(rollout_id)
    assert [call.cause for call in closed.calls] == ["root"]
    assert (closed.counts["left"], closed.counts["capture_faults"]) == (0, 0)


@pytest.mark.parametrize("unix", [False, True])
async def test_a_client_that_closes_its_side_and_then_leaves_cancels_its_generation(bench: Live, unix: bool) -> None:
    rollout_id, _ = await bench.open()
    bench.engine.release = asyncio.Event()
    async with opened(bench, unix=unix) as (_, writer):
        writer.write(request(bench.key, asking("Half.")))
        writer.write_eof()
        await bench.engine.arrived.acquire()
        writer.close()
        await bench.engine.cancelled.wait()
    assert (await bench.boundary.close(rollout_id)).counts["left"] == 1


async def test_a_request_whose_client_left_is_sampled_when_it_comes_again(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    bench.engine.release = asyncio.Event()
    sent = request(bench.key, asking("Twice."), "connection: close")
    async with opened(bench) as (_, writer):
        writer.write(sent)
        await bench.engine.arrived.acquire()
        writer.close()
        await bench.engine.cancelled.wait()
    bench.engine.release = None
    assert answer(await said(bench, sent))[0] == 200
    closed = await bench.boundary.close(rollout_id)
    assert (closed.counts["left"], len(closed.calls)) == (1, 1)


async def test_a_client_that_leaves_while_its_prompt_is_spelt_has_nothing_sampled(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    bench.engine.release = asyncio.Event()
    text = " ".join(str(number) for number in range(300))  # fits, and is encoded in a thread
    async with opened(bench) as (_, writer):
        writer.write(request(bench.key, asking(text, metadata="x" * 2**22)))
        await writer.drain()
        while not (await bench.boundary.stats())[0]["in_flight"]:
            pass
        writer.transport.abort()
    closed = await bench.boundary.close(rollout_id)
    assert closed.calls == ()
    assert closed.counts["left"] == 1


async def test_a_head_that_never_ends_is_closed_after_a_while_and_a_slow_one_is_served(bench: Live) -> None:
    await bench.open()
    async with undisturbed(bench):
        async with opened(bench) as (reader, writer):
            for byte in request(bench.key, asking("Slowly."), "connection: close"):
                writer.write(bytes([byte]))
                await writer.drain()
            assert answer(await reader.read())[0] == 200
        async with opened(bench) as (reader, writer):
            begin = asyncio.get_running_loop().time()
            writer.write(b"POST / HTTP/1.1\r\n")
            async with asyncio.TaskGroup() as group:
                ending = group.create_task(reader.read())
                while not ending.done():
                    writer.write(b"x-more: more\r\n")
                    await asyncio.wait([ending], timeout=0.2)
            assert asyncio.get_running_loop().time() - begin > HEAD_S - 1


BAD_HEADS: dict[str, tuple[int, bytes]] = {
    "no HTTP at all": (400, b"EHLO me\r\n\r\n"),
    "half a line": (400, b"POST\r\n\r\n"),
    "an unknown version": (400, b"POST / HTTP/9.9.9\r\n\r\n"),
    "a line without a colon": (400, b"POST / HTTP/1.1\r\nwhat is this\r\n\r\n"),
    "a space in a name": (400, b"POST / HTTP/1.1\r\na b: c\r\n\r\n"),
    "two lengths": (400, b"POST / HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nab"),
    "no length": (400, b"POST / HTTP/1.1\r\ncontent-length: two\r\n\r\nab"),
    "a negative length": (400, b"POST / HTTP/1.1\r\ncontent-length: -2\r\n\r\nab"),
    "two ways to tell the length": (
        400, b"POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "an unknown coding": (400, b"POST / HTTP/1.1\r\ntransfer-encoding: magic\r\n\r\n"),
    "no chunk": (400, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
    "a trailer": (400, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n\r\n"),
    "a chunk's head without end": (
        431, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;" + b"a" * (LONGEST_HEAD + 70_000)),
    "a trailer without end": (
        431, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * (LONGEST_HEAD + 70_000)),
    "no end": (431, b"POST / HTTP/1.1\r\n" + b"x: " + b"y" * (LONGEST_HEAD + 70_000)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_HEADS))
async def test_what_is_no_http_is_told_so_in_json_and_the_connection_ends(bench: Live, name: str) -> None:
    status, sent = BAD_HEADS[name]
    async with undisturbed(bench):
        received = await said(bench, sent)
    got, content = answer(received)
    assert (got, content["type"]) == (status, "error")
    assert content["error"]["message"]
    assert b"connection: close" in received.lower()


@pytest.mark.parametrize(
    "header",
    [
        *(
            "x-name: a\r\n b",
            "x-stainless-retry-count: 1\0",
            "content-encoding: \xff",
            "proxy-authorization: Basic \xff",
        ),
        *("content-encoding: br", "authorization: Basic \xe4", "x-codex-turn-metadata: {\xff", "expect: 100-continue"),
    ],
)
async def test_a_header_with_anything_in_it_is_read_or_refused(bench: Live, header: str) -> None:
    rollout_id, _ = await bench.open()
    sent = request(bench.key, asking("Odd.")).replace(b"host: model", b"host: model\r\n" + header.encode("latin-1"))
    async with undisturbed(bench):
        received = await said(bench, sent.replace(b"host: model", b"host: model\r\nconnection: close"))
    assert answer(received)[0] in (200, 400, 401)
    assert b"\r\nx-name" not in received
    assert (await bench.boundary.close(rollout_id)).counts["capture_faults"] == 0


async def test_the_answer_to_a_head_has_no_body_that_would_pass_for_the_next_answer(bench: Live) -> None:
    await bench.open()
    first = f"HEAD /api/hello HTTP/1.1\r\nhost: model\r\nauthorization: Bearer {bench.key}\r\n\r\n".encode()
    received = await said(bench, first + request(bench.key, asking("Next."), "connection: close"))
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert rest.startswith(b"HTTP/1.1 200")


async def test_an_old_client_that_waits_for_a_stream_is_sent_no_chunks(bench: Live) -> None:
    await bench.open()
    bench.engine.release = asyncio.Event()
    async with opened(bench) as (reader, writer):
        writer.write(request(bench.key, asking("Old.", stream=True), version="1.0"))
        head = await reader.readuntil(b"\r\n\r\n")  # with the first ping
        bench.engine.release.set()
        body = await reader.read()
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(b":")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_connections_on_which_nothing_is_asked_keep_nobody_out(bench: Live) -> None:
    (stats,) = await bench.boundary.stats()
    limits = resource.prlimit(stats["pid"], resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.prlimit, stats["pid"], resource.RLIMIT_NOFILE, limits)
        resource.prlimit(stats["pid"], resource.RLIMIT_NOFILE, (200, limits[1]))
        silent = [stack.enter_context(socket.socket()) for _ in range(300)]
        async with undisturbed(bench):
            for each in silent:
                each.connect(("127.0.0.1", bench.boundary.door("").port))
                await asyncio.sleep(0)
            await bench.open()
            assert answer(await said(bench, request(bench.key, asking("In."), "connection: close")))[0] == 200
        silent[0].settimeout(PATIENCE_S)
        assert silent[0].recv(1) == b""  # who waited longest had to go


async def test_an_answer_to_a_client_that_left_unseen_is_there_when_it_asks_again(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    (stats,) = await bench.boundary.stats()
    bench.engine.release = asyncio.Event()
    sent = request(bench.key, asking("Again."), "connection: close")
    async with opened(bench, unix=True) as (_, writer):
        writer.write(sent)
        await bench.engine.arrived.acquire()
        os.kill(stats["pid"], signal.SIGSTOP)
        bench.engine.release.set()
        await asyncio.sleep(0.2)
        writer.close()
    bench.engine.release = None
    os.kill(stats["pid"], signal.SIGCONT)
    assert answer(await said(bench, sent))[0] == 200
    assert len((await bench.boundary.close(rollout_id)).calls) == 1


async def test_nothing_that_a_client_sends_gets_into_the_head_of_an_answer(bench: Live) -> None:
    await bench.open()
    sent = request(bench.key, asking("Inject.", model="a\r\nx-mine: 1"), "connection: close", "x-a: b\r\n\tx-mine: 1")
    head = (await said(bench, sent)).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 200")
    assert b"x-mine" not in head


async def test_a_body_from_nobody_is_not_kept(bench: Live) -> None:
    before = (await bench.boundary.stats())[0]["peak_mb"]
    body = b" " * (30 * 2**20)
    async with undisturbed(bench), asyncio.TaskGroup() as group:
        told = [group.create_task(said(bench, request("sk-none", body, "connection: close"))) for _ in range(8)]
    assert [answer(each.result())[0] for each in told] == [401] * 8
    assert (await bench.boundary.stats())[0]["peak_mb"] - before < 60


async def test_what_unfolds_without_end_is_refused_before_it_is_held(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    once = gzip.compress(b" " * 2**24) * 100
    before = (await bench.boundary.stats())[0]["peak_mb"]
    async with undisturbed(bench):
        for body in (once, gzip.compress(once)):
            status, content = answer(
                await said(bench, request(bench.key, body, "content-encoding: gzip", "connection: close"))
            )
            assert (status, set(content["error"])) in ((413, ERROR), (400, ERROR))
        received = await said(bench, request("sk-none", once, "content-encoding: gzip", "connection: close"))
        assert answer(received)[0] == 401
    assert (await bench.boundary.stats())[0]["peak_mb"] - before < 150
    assert (await bench.boundary.close(rollout_id)).counts["capture_faults"] == 0


ERROR = {"message", "type", "param", "code"}
EMPTY = {"role": "user", "content": ""}
MANY: dict[str, Any] = {
    "messages": {"messages": [EMPTY] * 50_000},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 400_000}]},
    "calls": {"messages": [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 50_000}, EMPTY]},
    "tools": {"messages": [EMPTY], "tools": [{"type": "function", "function": {"name": "f"}}] * 50_000},
}  # fmt: skip


@pytest.mark.parametrize("name", list(MANY))
async def test_more_than_any_context_holds_is_refused_and_holds_nobody_up(bench: Live, name: str) -> None:
    rollout_id, _ = await bench.open()
    async with undisturbed(bench):
        received = await said(bench, request(bench.key, json.dumps(MANY[name]).encode(), "connection: close"))
    status, content = answer(received)
    assert (status, set(content["error"])) == (400, ERROR)
    closed = await bench.boundary.close(rollout_id)
    assert (closed.counts["refused"], closed.calls) == (1, ())


async def test_a_long_body_that_is_no_json_holds_nobody_up(bench: Live) -> None:
    await bench.open()
    async with undisturbed(bench):
        for body in (b"[" + b"1," * (12 * 2**20), b'"' + b"x" * (30 * 2**20), b'["\\ud83d", ' + b"1," * (8 * 2**20)):
            assert answer(await said(bench, request(bench.key, body, "connection: close")))[0] == 400


async def test_the_next_request_may_come_before_the_answer_but_not_without_end(bench: Live) -> None:
    rollout_id, _ = await bench.open()
    first, last = request(bench.key, asking("One.")), request(bench.key, asking("Two."), "connection: close")
    received = await said(bench, first + last)
    assert received.count(b"HTTP/1.1 200") == 2
    bench.engine.release = asyncio.Event()
    async with undisturbed(bench), opened(bench) as (_, writer):
        writer.write(first.replace(b"One", b"Six"))
        for _ in range(3):
            await bench.engine.arrived.acquire()
        with pytest.raises(ConnectionError):
            await fill(writer)
        await bench.engine.cancelled.wait()
    assert (await bench.boundary.close(rollout_id)).counts["left"] == 1


async def test_many_clients_may_come_while_the_process_is_busy(bench: Live) -> None:
    (stats,) = await bench.boundary.stats()
    door, begin = bench.boundary.door(""), asyncio.get_running_loop().time()
    with ExitStack() as stack:
        os.kill(stats["pid"], signal.SIGSTOP)
        stack.callback(os.kill, stats["pid"], signal.SIGCONT)
        for _ in range(400):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(PATIENCE_S)
            waiting.connect(("127.0.0.1", door.port))  # with a short queue, the system's next try is a second later
        assert asyncio.get_running_loop().time() - begin < PATIENCE_S
