"""What vLLM's own processes import of clawexp, from this folder alone: in their environment there is no clawexp.

`Guard` is for vLLM's `--middleware`, `CheckpointLoader` for its `--worker-extension-cls`.
"""

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """Refuses whoever does not show the key, on every route: vLLM itself leaves those that change weights open."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._knows(scope):
            await self._app(scope, receive, send)
            return
        body = json.dumps({"error": {"message": "the engine's key is missing or wrong", "code": "unauthorized"}})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    def _knows(self, scope: Message) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


class CheckpointLoader:
    """Becomes a part of vLLM's worker, whose attributes it uses."""

    device: Any
    model_runner: Any

    def load_checkpoint(self, path: str) -> None:
        """Take the weights of a checkpoint folder."""
        self.model_runner.reload_weights(weights_path=path)
        head: Any = getattr(self.model_runner.get_model(), "lm_head", None)
        if self.device.type == "cpu" and hasattr(head, "quant_method"):
            # On CPUs each layer holds a packed copy of its weights, and vLLM 0.32 does not renew that of a head that
            # is tied to the embedding: it would go on with the old one.
            head.quant_method.process_weights_after_loading(head)
