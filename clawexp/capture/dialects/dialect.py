"""What a dialect is: a harness's way to ask a model, read into requests and written back as its own kind of answer.

A further dialect is one module beside this one, and one entry in `clawexp.capture.dialects.table`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from clawexp.capture.message import Answer, Refused, Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An HTTP request but for its body."""

    method: str
    path: str
    """Without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Looked up without regard to case."""


class Dialect(Protocol):
    """Stateless."""

    name: str
    vendor: str
    """Where harnesses that are told of no other place ask: `https://api.example.org`."""
    ping: bytes
    """What a stream may carry before its answer, to show that somebody is there."""

    def serves(self, asked: Asked) -> bool:
        """Whether this is a model call, or a question about the models, in this dialect."""
        ...

    def resembles(self, asked: Asked) -> bool:
        """Whether a request that nobody serves comes from a client of this dialect, by its path, host or headers."""
        ...

    def key(self, asked: Asked) -> str:
        """The credential; empty where there is none."""
        ...

    def retried(self, asked: Asked) -> bool:
        """Whether the client says that it asks again because it got no answer."""
        ...

    def about(self, asked: Asked, model: str) -> Reply | None:
        """The reply to a question about the models. None: the request is a model call. Raises Refused."""
        ...

    def read(self, asked: Asked, body: bytes) -> Request:
        """A model call. Messages keep their places. Raises Refused."""
        ...

    def answer(self, request: Request, answer: Answer, model: str) -> Reply:
        """The whole response, streamed or not as the request asks."""
        ...

    def refuse(self, refused: Refused, *, stream: bool) -> Reply:
        """The dialect's own form of an error. `stream`: the client has asked for one."""
        ...


def meant_for(asked: Asked, vendor: str) -> bool:
    """Whether a request names the host of a vendor."""
    return asked.headers.get("host", "") == vendor.removeprefix("https://")


@runtime_checkable
class Counting(Protocol):
    """A dialect in which a harness may ask how long a prompt would be."""

    def counts(self, asked: Asked) -> bool:
        """Whether this asks for the length of a prompt; its body is then read like a call's."""
        ...

    def count(self, tokens: int) -> Reply: ...
