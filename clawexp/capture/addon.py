"""mitmproxy's hooks -> the capture service. Model calls are answered here; of other hosts only those on the
experiment's list are ever asked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from mitmproxy import connection, http
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers.http import HttpLayer

from clawexp.capture.awaited import RESET_S, Awaited
from clawexp.capture.client import has_left
from clawexp.capture.decoding import too_long
from clawexp.capture.dialects.dialect import Asked
from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.exchange import Exchange
from clawexp.capture.garbage import Garbage
from clawexp.capture.inbound import Inbound
from clawexp.capture.keep_alive import AnsweredHttp
from clawexp.capture.passage import Blocked, Passage, Passages, password
from clawexp.capture.service import CaptureService, Incoming, unavailable
from clawexp.capture.unserved import SILENT_S, Unserved
from clawexp.capture.upstream import Upstream

FAILED = DIALECTS[-1].refuse(unavailable(), stream=False)
"""Stands if all else fails."""
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
        self._awaited: dict[str, Awaited] = {}
        """By client connection: the answer that is being made."""
        self._tunnels: dict[str, Passage] = {}
        """By client connection."""
        self._unserved = Unserved()
        self.garbage: Garbage | None = None
        """Set once everything is loaded."""
        self.serving = asyncio.Event()
        """Set once the proxy listens."""

    def running(self) -> None:
        self.serving.set()

    def client_connected(self, client: connection.Client) -> None:
        self._unserved.expect(client, SILENT_S)

    def next_layer(self, nextlayer: NextLayer) -> None:
        if type(nextlayer.layer) is HttpLayer:
            # It has been placed among its neighbours already, and differs only in what it makes for a client.
            nextlayer.layer.__class__ = AnsweredHttp
            context = nextlayer.layer.context
            nextlayer.layer.connections[context.client] = Inbound(context.fork(), self._unserved)

    def http_connect(self, flow: http.HTTPFlow) -> None:
        flow.response = PENDING  # whatever goes wrong here, no tunnel is opened
        try:
            self._tunnels[flow.client_conn.id] = self._admitted(flow.request)
        except Blocked as blocked:
            flow.response = _blocked(blocked)
        else:
            flow.response = None
            self._unserved.expect(flow.client_conn, SILENT_S)

    def request(self, flow: http.HTTPFlow) -> None:
        flow.response = PENDING  # whatever goes wrong here, no host is asked
        try:
            passage = self._passage(flow)
        except Blocked as blocked:
            flow.response = _blocked(blocked)
            return
        rollout = passage and self._service.rollouts.get(passage.key)
        if rollout is not None and passage is not None and not passage.to_model:
            if "dropped" in flow.metadata:
                flow.response = _blocked(Blocked(413, str(too_long(flow.metadata["dropped"]))))
                return
            self._upstream.ask(flow, rollout)
            flow.response = None
            return
        self._awaited[flow.client_conn.id] = flow.metadata["awaited"] = Awaited(FAILED)
        flow.metadata["key"] = passage and passage.key

    def large_body(self, flow: http.HTTPFlow) -> None:
        tunnel = self._tunnels.get(flow.client_conn.id)
        if tunnel is not None:
            key = tunnel.key
        elif flow.metadata["absolute"]:
            key = password(_credentials(flow.request))
        else:
            key = None
        flow.metadata["may_send"] = self._service.knows(_asked(flow.request), key)

    async def recall(self, flow: http.HTTPFlow) -> None:
        await self._upstream.recall(flow)

    async def keep(self, flow: http.HTTPFlow) -> None:
        await self._upstream.keep(flow)

    def _passage(self, flow: http.HTTPFlow) -> Passage | None:
        """How the request came through the proxy. None: it was sent to the proxy itself. Raises Blocked."""
        tunnel = self._tunnels.get(flow.client_conn.id)
        return self._admitted(flow.request) if tunnel is None and flow.metadata["absolute"] else tunnel

    def _admitted(self, request: http.Request) -> Passage:
        return self._passages.admit(_credentials(request), request.host, request.port)

    async def answer(self, flow: http.HTTPFlow) -> None:
        awaited: Awaited = flow.metadata["awaited"]
        incoming = Incoming(
            asked=_asked(flow.request),
            body=flow.request.raw_content or b"",
            dropped=flow.metadata.get("dropped", 0),
            key=flow.metadata["key"],
            until_gone=self.until_gone(flow.client_conn),
            may_ping=partial(setattr, awaited, "ping"),
        )
        try:
            served = await self._service.serve(incoming)
            awaited.reply = served.reply
            flow.metadata["exchange"] = served.exchange
        finally:
            awaited.finish()
            self._awaited.pop(flow.client_conn.id, None)

    async def await_answer(self, flow: http.HTTPFlow) -> None:
        await flow.metadata["awaited"].wait()

    async def await_reset(self, flow: http.HTTPFlow) -> None:
        await asyncio.sleep(RESET_S)

    def half_closed(self, client: connection.Client) -> None:
        awaited = self._awaited.get(client.id)
        if awaited is not None:
            awaited.half_close()

    def response(self, flow: http.HTTPFlow) -> None:
        exchange = flow.metadata.get("exchange")
        if not isinstance(exchange, Exchange):
            return
        # The loop may not have got round yet to what the connection knows.
        if not flow.client_conn.state & ConnectionState.CAN_WRITE or has_left(flow.client_conn):
            exchange.delivered = False

    def client_disconnected(self, client: connection.Client) -> None:
        self._unserved.forget(client)
        self._tunnels.pop(client.id, None)
        for task in self._waiting.pop(client.id, ()):
            task.cancel()
        if self.garbage is not None:
            self.garbage.connection_closed(idle=not self._waiting)

    @contextmanager
    def until_gone(self, client: connection.Client) -> Iterator[None]:
        """Inside it, the task at work is cancelled when the client leaves, or at once if it has left."""
        if not client.state & ConnectionState.CAN_WRITE:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        waiting = self._waiting.setdefault(client.id, set())
        waiting.add(task)
        try:
            yield
        finally:
            waiting.discard(task)
            if not waiting:
                self._waiting.pop(client.id, None)


def _asked(request: http.Request) -> Asked:
    return Asked(
        method=request.method,
        path=request.path.partition("?")[0],
        query=request.query,
        headers=request.headers,
    )


def _credentials(request: http.Request) -> str:
    return request.headers.get("proxy-authorization", "")


def _blocked(blocked: Blocked) -> http.Response:
    headers = {"content-type": "text/plain; charset=utf-8"}
    if blocked.status == 407:
        headers["proxy-authenticate"] = 'Basic realm="clawexp"'
    return http.Response.make(blocked.status, f"{blocked}\n", headers)
