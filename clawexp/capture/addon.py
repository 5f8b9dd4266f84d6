"""mitmproxy's hooks -> the capture service. Model calls are answered here; of other hosts only those on the
experiment's list are ever asked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from mitmproxy import connection, http
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HttpLayer

from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.exchange import Exchange
from clawexp.capture.garbage import Garbage
from clawexp.capture.keep_alive import AnsweredHttp, Awaited
from clawexp.capture.message import Reply
from clawexp.capture.passage import Blocked, Passage, Passages
from clawexp.capture.service import CaptureService, Incoming
from clawexp.capture.upstream import Upstream

FAILED = Reply(status=503, body=b"", headers={"retry-after": "2"})
"""Stands if the service fails."""
PENDING = http.Response.make(FAILED.status)
"""Tells mitmproxy that no upstream is to be asked. What is sent takes its place in the flow; only its
timestamps change."""


class CaptureAddon:
    """Reads flows, writes responses, and tells the service when a client has left."""

    def __init__(self, service: CaptureService, passages: Passages, upstream: Upstream) -> None:
        self._service = service
        self._passages = passages
        self._upstream = upstream
        self._waiting: dict[str, set[asyncio.Task[object]]] = {}
        """By client connection: requests that end with it."""
        self._tunnels: dict[str, Passage] = {}
        """By client connection."""
        self.garbage: Garbage | None = None
        """Set once everything is loaded."""
        self.serving = asyncio.Event()
        """Set once the proxy listens."""

    def running(self) -> None:
        self.serving.set()

    def next_layer(self, nextlayer: NextLayer) -> None:
        if type(nextlayer.layer) is HttpLayer:
            # It has been placed among its neighbours already, and differs only in the streams that it makes.
            nextlayer.layer.__class__ = AnsweredHttp

    def http_connect(self, flow: http.HTTPFlow) -> None:
        try:
            self._tunnels[flow.client_conn.id] = self._admitted(flow.request)
        except Blocked as blocked:
            flow.response = _blocked(blocked)

    def request(self, flow: http.HTTPFlow) -> None:
        try:
            passage = self._passage(flow)
        except Blocked as blocked:
            flow.response = _blocked(blocked)
            return
        rollout = passage and self._service.rollouts.get(passage.key)
        if rollout is not None and passage is not None and not passage.to_model:
            self._upstream.ask(flow, rollout)
            return
        flow.response = PENDING
        flow.metadata["awaited"] = Awaited(FAILED)
        flow.metadata["key"] = passage and passage.key

    def _passage(self, flow: http.HTTPFlow) -> Passage | None:
        """How the request came through the proxy. None: it was sent to the proxy itself. Raises Blocked."""
        tunnel = self._tunnels.get(flow.client_conn.id)
        return self._admitted(flow.request) if tunnel is None and flow.metadata["absolute"] else tunnel

    def _admitted(self, request: http.Request) -> Passage:
        return self._passages.admit(request.headers.get("proxy-authorization", ""), request.host, request.port)

    async def answer(self, flow: http.HTTPFlow) -> None:
        awaited: Awaited = flow.metadata["awaited"]
        asked = Asked(
            method=flow.request.method,
            path=flow.request.path.partition("?")[0],
            query=flow.request.query,
            headers=flow.request.headers,
        )
        incoming = Incoming(
            asked=asked,
            body=_body(flow.request),
            key=flow.metadata["key"],
            until_gone=self._until_gone(flow.client_conn.id),
            may_ping=partial(setattr, awaited, "ping"),
        )
        try:
            served = await self._service.serve(incoming)
            awaited.reply = served.reply
            flow.metadata["exchange"] = served.exchange
        finally:
            awaited.done.set()

    async def await_answer(self, flow: http.HTTPFlow) -> None:
        await flow.metadata["awaited"].wait()

    def response(self, flow: http.HTTPFlow) -> None:
        exchange = flow.metadata.get("exchange")
        if isinstance(exchange, Exchange) and not flow.client_conn.connected:
            exchange.delivered = False
        self._upstream.answered(flow)

    def client_disconnected(self, client: connection.Client) -> None:
        self._tunnels.pop(client.id, None)
        for task in self._waiting.pop(client.id, ()):
            task.cancel()
        if self.garbage is not None:
            self.garbage.connection_closed(idle=not self._waiting)

    @contextmanager
    def _until_gone(self, client_id: str) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        waiting = self._waiting.setdefault(client_id, set())
        waiting.add(task)
        try:
            yield
        finally:
            waiting.discard(task)
            if not waiting:
                self._waiting.pop(client_id, None)


def _blocked(blocked: Blocked) -> http.Response:
    headers = {"content-type": "text/plain; charset=utf-8"}
    if blocked.status == 407:
        headers["proxy-authenticate"] = 'Basic realm="clawexp"'
    return http.Response.make(blocked.status, f"{blocked}\n", headers)


def _body(request: http.Request) -> bytes:
    """Decompressed; as sent where that fails, which the dialect then refuses."""
    try:
        return request.get_content() or b""
    except ValueError:
        return request.raw_content or b""
