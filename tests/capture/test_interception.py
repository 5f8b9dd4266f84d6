"""The way in without a base URL: official clients that call their vendor's host, through the proxy."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from aiohttp import web
from bench import CALL, SCHEMA
from cryptography import x509
from mitmproxy.certs import CertStore
from stub_engine import StubEngine, model_of, options_of, serve_stub

from clawexp.capture.boundary import Boundary, boundary
from clawexp.capture.decoding import LONGEST_BODY
from clawexp.capture.passage import MOST_BLOCKED, OTHERS
from clawexp.capture.tokenizer import Tokenizer
from clawexp.records import Call
from clawexp.scratch import scratch_root

pytestmark = pytest.mark.asyncio(loop_scope="module")

READ = {"name": "read", "description": "Read.", "parameters": SCHEMA, "strict": True}
TOOLS: Any = [{"type": "function", "function": READ}]

PIECE = bytes(2**20)
WHEEL = 200 * len(PIECE)


class Library:
    """A host that programs in a sandbox may ask: it counts, so that nobody takes an old answer for a new one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if request.path == "/wheel":
            return await self._endless(request)
        status = 404 if request.path == "/nothing" else 200
        return web.Response(text=f"answer {len(self.asked)}", status=status, headers={"x-source": "library"})

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        """More than the proxy may hold; it says how much or not."""
        response = web.StreamResponse()
        if "sized" in request.query:
            response.content_length = WHEEL
        await response.prepare(request)
        for _ in range(WHEEL // len(PIECE)):
            await response.write(PIECE)
        await response.write_eof()
        return response

    @asynccontextmanager
    async def serve(self, context: ssl.SSLContext | None) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


def signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """An authority of the library's own, and what it serves with."""
    store = CertStore.from_store(folder, "library", 2048)
    entry = store.get_cert("localhost", [x509.DNSName("localhost")])
    pair = folder / "localhost.pem"
    key = (folder / "library-ca.pem").read_bytes()
    pair.write_bytes(entry.cert.to_pem() + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair)
    return folder / "library-ca-cert.pem", context


class Site:
    """A boundary that is a proxy, an engine behind it, and two hosts beside the model's."""

    def __init__(self, engine: StubEngine, live: Boundary, secure: Library, plain: Library) -> None:
        self.engine, self.live, self.secure, self.plain = engine, live, secure, plain
        self.opened = 0
        self.secure_port = self.plain_port = 0

    async def open(self) -> tuple[str, str]:
        self.opened += 1
        rollout_id = f"rollout-{self.opened}"
        return rollout_id, await self.live.open(rollout_id, seed=3)

    def http(self, rollout_id: str, key: str) -> httpx.AsyncClient:
        """A client that knows the proxy and trusts its authority alone."""
        assert self.live.certificate is not None
        context = ssl.create_default_context(cadata=self.live.certificate.decode())
        proxy = f"http://clawexp:{key}@127.0.0.1:{self.live.door(rollout_id).port}"
        return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False)

    async def counts(self, rollout_id: str) -> dict[str, Any]:
        return dict((await self.live.close(rollout_id)).counts)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tokenizer: Tokenizer, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    trusted, context = signed(tmp_path_factory.mktemp("library"))
    secure, plain = Library(), Library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(trusted))  # whom the capture process trusts, as any other program
        async with (
            serve_stub(tokenizer) as engine,
            secure.serve(context) as secure_port,
            plain.serve(None) as plain_port,
            boundary(
                options_of(allow_hosts=(f"localhost:{secure_port}", f"local*:{plain_port}"), cache=True, workers=2),
                model_of(checkpoint),
                engine.url,
                "secret",
                tmp_path_factory.mktemp("run"),
                interception=True,
            ) as live,
        ):
            made = Site(engine, live, secure, plain)
            made.secure_port, made.plain_port = secure_port, plain_port
            yield made


async def conversation(engine: StubEngine, client: openai.AsyncOpenAI) -> None:
    """Three turns, one of them streamed."""
    messages: list[Any] = [{"role": "user", "content": "Read the file."}]
    for turn in range(3):
        engine.say(f"Turn {turn}.\n{CALL}")
        if turn == 1:
            async with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS) as events:
                answer: Any = await events.get_final_completion()
        else:
            answer = await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        for call in message["tool_calls"]:
            call["function"].pop("parsed_arguments", None)
            call.pop("index", None)
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "fine"} for c in message["tool_calls"]]
        messages += [message, *results]


def gist(call: Call) -> tuple[Any, ...]:
    return call.prompt_ids, call.sampled_ids, call.logprobs, call.cause, call.shared, call.dialect


async def test_both_ways_in_give_the_same_calls(site: Site) -> None:
    by_proxy, proxy_key = await site.open()
    by_url, url_key = await site.open()
    async with (
        site.http(by_proxy, proxy_key) as http,
        openai.AsyncOpenAI(api_key="sk-none", http_client=http, max_retries=0) as client,
    ):
        await conversation(site.engine, client)
    url = f"http://127.0.0.1:{site.live.door(by_url).port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=url_key, max_retries=0) as client:
        await conversation(site.engine, client)
    intercepted, plain = (await site.live.close(by_proxy)).calls, (await site.live.close(by_url)).calls
    assert [gist(call) for call in intercepted] == [gist(call) for call in plain]
    assert [call.cause for call in plain] == ["root", "continue", "continue"]


async def test_a_proxy_credential_of_no_rollout_is_refused_and_nothing_recorded(site: Site) -> None:
    rollout_id, _ = await site.open()
    before = len(site.engine.requests)
    async with site.http(rollout_id, "sk-wrong") as http:
        with pytest.raises(httpx.ProxyError, match="407"):
            await http.post("https://api.openai.com/v1/chat/completions", json={})
        assert (await http.get(f"http://localhost:{site.plain_port}/")).status_code == 407
    assert len(site.engine.requests) == before
    counts = await site.counts(rollout_id)
    assert (counts["calls"], counts["blocked"], counts["forwarded"]) == (0, {}, 0)


async def test_a_credential_is_void_once_its_rollout_is_closed(site: Site) -> None:
    rollout_id, key = await site.open()
    async with site.http(rollout_id, key) as http:
        assert (await http.get("https://api.openai.com/v1/models")).status_code == 200
        await site.live.close(rollout_id)
        assert (await http.get("https://api.openai.com/v1/models")).status_code == 401  # in the open tunnel
    async with site.http(rollout_id, key) as http:
        with pytest.raises(httpx.ProxyError, match="407"):
            await http.get("https://api.openai.com/v1/models")


async def test_hosts_that_are_not_listed_are_refused_and_reported(site: Site) -> None:
    rollout_id, key = await site.open()
    async with site.http(rollout_id, key) as http:
        for _ in range(2):
            with pytest.raises(httpx.ProxyError, match="403"):
                await http.get("https://telemetry.example.org/v1")
        refused = await http.get("http://169.254.169.254/latest/meta-data")
        assert refused.status_code == 403
        assert "169.254.169.254:80 cannot be reached from here; capture.allow_hosts" in refused.text
        with pytest.raises(httpx.ProxyError, match="403"):
            await http.get(f"https://localhost:{site.secure_port + 1}/")
    assert (await site.counts(rollout_id))["blocked"] == {
        "telemetry.example.org:443": 2,
        "169.254.169.254:80": 1,
        f"localhost:{site.secure_port + 1}": 1,
    }


async def test_hosts_that_a_harness_makes_up_are_named_up_to_a_number(site: Site) -> None:
    rollout_id, key = await site.open()
    async with site.http(rollout_id, key) as http:
        for number in range(MOST_BLOCKED + 5):
            assert (await http.get(f"http://{number}.example.org/")).status_code == 403
    blocked = (await site.counts(rollout_id))["blocked"]
    assert len(blocked) == MOST_BLOCKED + 1
    assert blocked[OTHERS] == 5


@pytest.mark.parametrize("query", ["", "?sized"])
async def test_a_long_answer_of_a_listed_host_is_passed_on_and_not_held(site: Site, query: str) -> None:
    rollout_id, key = await site.open()
    before = max(each["peak_mb"] for each in await site.live.stats())
    async with site.http(rollout_id, key) as http:
        for _ in range(2):
            async with http.stream("GET", f"http://localhost:{site.plain_port}/wheel{query}") as answer:
                assert sum([len(piece) async for piece in answer.aiter_bytes()]) == WHEEL
    assert max(each["peak_mb"] for each in await site.live.stats()) - before < 80
    counts = await site.counts(rollout_id)
    assert (counts["cache_hits"], counts["cache_misses"]) == (0, 2)


async def test_a_body_that_is_too_long_reaches_no_host(site: Site) -> None:
    rollout_id, key = await site.open()
    asked = len(site.plain.asked)
    async with site.http(rollout_id, key) as http:
        answer = await http.post(f"http://localhost:{site.plain_port}/write", content=bytes(LONGEST_BODY + 1))
    assert (answer.status_code, len(site.plain.asked)) == (413, asked)
    await site.live.close(rollout_id)


async def test_an_answer_is_kept_for_those_who_ask_for_its_kind(site: Site) -> None:
    rollout_id, key = await site.open()
    url = f"http://localhost:{site.plain_port}/kinds"
    async with site.http(rollout_id, key) as http:
        told = [
            (await http.get(url, headers=headers)).text
            for headers in ({"accept": "text/html"}, {"accept": "text/plain"}, {"accept-encoding": "identity"}) * 2
        ]
    assert told[:3] == told[3:]
    assert len(set(told)) == 3
    await site.live.close(rollout_id)


async def test_an_unknown_path_of_the_vendors_host_is_answered_here(site: Site) -> None:
    rollout_id, key = await site.open()
    async with site.http(rollout_id, key) as http:
        answer = await http.get("https://api.anthropic.com/api/claude_code/settings")
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"type", "message"}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_listed_host_is_really_asked_once_for_each_request_and_state(site: Site, scheme: str) -> None:
    host, port = (site.secure, site.secure_port) if scheme == "https" else (site.plain, site.plain_port)
    url = f"{scheme}://localhost:{port}"
    first, key = await site.open()
    async with site.http(first, key) as http:
        told = [await http.get(f"{url}/a?q=1") for _ in range(2)]
        assert told[0].text == told[1].text
        assert told[0].headers["x-source"] == told[1].headers["x-source"] == "library"
        assert (await http.get(f"{url}/a?q=2")).text != told[0].text
        await http.post(f"{url}/write", content=b"one")
        after = await http.get(f"{url}/a?q=1")
        assert after.text != told[0].text
        assert [(await http.get(f"{url}/nothing")).status_code for _ in range(2)] == [404, 404]
    assert not {"proxy-authorization", "proxy-connection"} & {name for each in host.headers for name in each}
    counts = await site.counts(first)
    assert (counts["forwarded"], counts["cache_hits"], counts["cache_misses"]) == (7, 1, 6)
    asked = len(host.asked)
    second, key = await site.open()
    async with site.http(second, key) as http:
        assert (await http.get(f"{url}/a?q=1")).text == told[0].text
        assert (await http.post(f"{url}/write", content=b"one")).status_code == 200
        assert (await http.get(f"{url}/a?q=1")).text == after.text
    assert len(host.asked) == asked
    assert (await site.counts(second))["cache_hits"] == 3


async def test_rollouts_are_shared_out_among_the_processes(site: Site) -> None:
    rollouts = [await site.open() for _ in range(8)]
    ports = {site.live.door(rollout_id).port for rollout_id, _ in rollouts}
    assert len(ports) == 2
    stats = await site.live.stats()
    assert len({each["pid"] for each in stats}) == 2
    assert not any(each["torch"] for each in stats)
    assert all(each["rollouts"] for each in stats)
    for rollout_id, _ in rollouts:
        await site.live.close(rollout_id)


async def test_without_interception_nothing_passes(site: Site, checkpoint: Path, tmp_path: Path) -> None:
    options = options_of()
    async with boundary(options, model_of(checkpoint), site.engine.url, "secret", tmp_path) as live:
        key = await live.open("r", seed=1)
        assert live.certificate is None
        proxy = f"http://clawexp:{key}@127.0.0.1:{live.door('r').port}"
        async with httpx.AsyncClient(proxy=proxy, trust_env=False) as http:
            with pytest.raises(httpx.ProxyError, match="403"):
                await http.get("https://api.openai.com/v1/models")
            assert (await http.get(f"http://localhost:{site.plain_port}/")).status_code == 403


async def test_the_authoritys_key_is_its_owners_and_ends_with_the_run(checkpoint: Path, tmp_path: Path) -> None:
    def folders() -> set[Path]:
        return set(scratch_root().glob("authority-*"))

    others = folders()
    model = model_of(checkpoint)
    async with boundary(options_of(), model, "http://127.0.0.1:9", "secret", tmp_path, interception=True) as live:
        (folder,) = folders() - others
        assert folder.stat().st_mode & 0o077 == 0
        key = await live.open("r", seed=1)
        assert live.certificate is not None
        assert b"PRIVATE" not in live.certificate
        reader, writer = await asyncio.open_connection("127.0.0.1", live.door("r").port)
        writer.write(b"CONNECT api.openai.com:443 HTTP/1.1\r\nProxy-Authorization: Basic %%%\r\n\r\n")
        assert b" 407 " in await reader.readline()
        writer.close()
    assert folders() - others == set()
    assert key not in (tmp_path / "capture.log").read_text()
