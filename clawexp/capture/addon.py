"""mitmproxy's hooks -> the capture service. Everything is answered here; nothing ever goes upstream."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mitmproxy import connection, http

from clawexp.capture.exchange import Exchange
from clawexp.capture.message import Reply
from clawexp.capture.service import CaptureService, Incoming


class CaptureAddon:
    """Reads flows, writes responses, and tells the service when a client has left."""

    def __init__(self, service: CaptureService) -> None:
        self._service = service
        self._waiting: dict[str, set[asyncio.Task[object]]] = {}
        """By client connection: requests that end with it."""
        self.serving = asyncio.Event()
        """Set once the proxy listens."""

    def running(self) -> None:
        self.serving.set()

    async def request(self, flow: http.HTTPFlow) -> None:
        # Stands if the service fails: without a response mitmproxy would ask the upstream, and there is none.
        flow.response = http.Response.make(503, b"", {"retry-after": "2"})
        incoming = Incoming(
            method=flow.request.method,
            path=flow.request.path.partition("?")[0],
            headers=flow.request.headers,
            body=_body(flow.request),
            until_gone=self._until_gone(flow.client_conn.id),
        )
        served = await self._service.serve(incoming)
        flow.response = _response(served.reply)
        flow.metadata["exchange"] = served.exchange

    def response(self, flow: http.HTTPFlow) -> None:
        exchange = flow.metadata.get("exchange")
        if isinstance(exchange, Exchange) and not flow.client_conn.connected:
            exchange.delivered = False

    def client_disconnected(self, client: connection.Client) -> None:
        for task in self._waiting.pop(client.id, ()):
            task.cancel()

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


def _body(request: http.Request) -> bytes:
    """Decompressed; as sent where that fails, which the dialect then refuses."""
    try:
        return request.get_content() or b""
    except ValueError:
        return request.raw_content or b""


def _response(reply: Reply) -> http.Response:
    return http.Response.make(reply.status, reply.body, dict(reply.headers))
