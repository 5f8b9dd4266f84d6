"""mitmproxy's hooks, told only to those who listen.

A call makes some ten of them. mitmproxy starts a task for each, asks every addon about it, and tells of it a second
time as an update; nearly all of that reaches nobody, and costs a fifth of what a call costs.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mitmproxy import addonmanager, hooks


class Listeners(addonmanager.AddonManager):
    """mitmproxy's addons, all of which are there before the first hook."""

    def __init__(self, master: Any) -> None:
        super().__init__(master)
        self._listening: dict[str, list[Callable[..., Any]]] = {}
        """By name of the hook, once it was first told."""

    async def handle_lifecycle(self, event: hooks.Hook) -> None:
        await self.trigger_event(event)

    async def trigger_event(self, event: hooks.Hook) -> None:
        for listener in self._listeners(event):
            with addonmanager.safecall():
                result = listener(*event.args())
                if inspect.isawaitable(result):
                    await result

    def tell_at_once(self, event: hooks.Hook) -> bool:
        """Tell a hook without a task of its own. False where a listener may take its time: then nobody was told."""
        listening = self._listeners(event)
        if any(inspect.iscoroutinefunction(listener) for listener in listening):
            return False
        for listener in listening:
            with addonmanager.safecall():
                listener(*event.args())
        return True

    def _listeners(self, event: hooks.Hook) -> list[Callable[..., Any]]:
        listening = self._listening.get(event.name)
        if listening is None:
            listening = [listener for addon in self.chain for _, listener in self._iter_hooks(addon, event)]
            self._listening[event.name] = listening
        return listening
