"""Hooks of mitmproxy, told to addons by hand."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mitmproxy import optmanager
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook, HttpResponseHook

from clawexp.capture.listeners import Listeners

FLOW: Any = object()


class Hearer:
    """Notes what it hears; of responses it is told as a coroutine."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def request(self, flow: object) -> None:
        self.heard.append("request")

    async def response(self, flow: object) -> None:
        await asyncio.sleep(0)
        self.heard.append("response")


def listening() -> tuple[Listeners, Hearer]:
    listeners, hearer = Listeners(SimpleNamespace(options=optmanager.OptManager())), Hearer()
    listeners.chain.append(hearer)
    return listeners, hearer


def test_a_hook_is_told_at_once_where_nobody_takes_his_time() -> None:
    listeners, hearer = listening()
    assert listeners.tell_at_once(HttpRequestHook(FLOW))
    assert hearer.heard == ["request"]


async def test_a_hook_that_a_coroutine_listens_to_is_not_told_at_once_but_in_its_turn() -> None:
    listeners, hearer = listening()
    hook = HttpResponseHook(FLOW)
    assert not listeners.tell_at_once(hook)
    assert hearer.heard == []
    await listeners.handle_lifecycle(hook)
    assert hearer.heard == ["response"]
