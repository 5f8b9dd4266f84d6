"""A client's connection, below what mitmproxy says of it."""

import select
from typing import Any

from mitmproxy import connection, ctx
from mitmproxy.proxy.server import ConnectionHandler


def has_left(client: connection.Client) -> bool:
    """Whether nobody reads what is sent to a client. By TCP it is known only after something was sent to it."""
    handler = _handler(client)
    transport = handler and handler.transports.get(client)
    writer: Any = transport and transport.writer
    if not writer or writer.is_closing():
        return True
    poll = select.poll()
    poll.register(writer.get_extra_info("socket"), 0)  # errors and hang-ups are told in any case
    return bool(poll.poll(0))


def hang_up(client: connection.Client) -> None:
    """Close the connection, whatever is at work on it."""
    handler = _handler(client)
    transport = handler and handler.transports.get(client)
    if transport and transport.handler:
        transport.handler.cancel("the request took too long to come")


def _handler(client: connection.Client) -> ConnectionHandler | None:
    """Who serves the client, while it is there."""
    servers: Any = ctx.master.addons.get("proxyserver")
    return servers.connections.get(client.id)
