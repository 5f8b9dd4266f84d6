"""What a dialect is: a harness's way to ask a model, read into requests and written back as its own kind of
answer.

A further dialect is one module beside this one, and one entry in `clawexp.capture.dialects.table`.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from clawexp.capture.message import Answer, Refused, Reply, Request


class Dialect(Protocol):
    """Stateless."""

    name: str
    ping: bytes
    """What a stream may carry before its answer, to show that somebody is there."""

    def serves(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether this is a model call, or a question about the models, in this dialect."""
        ...

    def key(self, headers: Mapping[str, str]) -> str:
        """The credential; empty where there is none."""
        ...

    def retried(self, headers: Mapping[str, str]) -> bool:
        """Whether the client says that it asks again because it got no answer."""
        ...

    def about(self, method: str, path: str, model: str) -> Reply | None:
        """The reply to a question about the models. None: the request is a model call. Raises Refused."""
        ...

    def read(self, headers: Mapping[str, str], body: bytes) -> Request:
        """A model call's body. Messages keep their places. Raises Refused."""
        ...

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        """The whole response, streamed or not as the request asks."""
        ...

    def refuse(self, refused: Refused) -> Reply:
        """The dialect's own form of an error."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A dialect in which a harness may ask how long a prompt would be."""

    def counts(self, method: str, path: str) -> bool:
        """Whether this asks for the length of a prompt; its body is then read like a call's."""
        ...

    def count(self, tokens: int) -> Reply: ...
