"""Hosts that an experiment allows are really asked, or, where they are deterministic, asked once.

A cached response is found by method, URL, body and the headers that choose among answers, and by what the rollout has
changed so far: every request that may change something (all but GET and HEAD) makes the next ones different.
"""

import asyncio
import hashlib
import json
import secrets
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mitmproxy import http

from clawexp.capture.open_rollout import OpenRollout

READING = ("GET", "HEAD")
CHOOSING = ("accept", "accept-encoding", "accept-language", "authorization", "content-type", "cookie", "range")
"""Headers by which one URL has several answers."""
OURS = ("proxy-authorization", "proxy-connection")
"""Headers for this proxy, which are nobody else's business."""
LONGEST_KEPT = 16 * 2**20
"""Bytes of a response that is kept. A longer one is passed on as it comes, since nobody here has to hold it."""
DERIVED = ("content-length", "transfer-encoding", "connection", "keep-alive")
"""Headers that belong to one transfer of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where the response to a request is, or will be."""

    file: Path
    counts: Counter[str]
    """Of the rollout that asks."""


class Upstream:
    """What goes out, and what came back. Model calls never pass here.

    A flow whose response is to be looked up and kept has a `Kept` in its metadata, as `keep`.
    """

    def __init__(self, cache: Path | None) -> None:
        """`cache`: folder of kept responses; None keeps nothing."""
        self._cache = cache

    def ask(self, flow: http.HTTPFlow, rollout: OpenRollout) -> None:
        """Make a request ready to go out, or to be recalled."""
        for name in OURS:
            flow.request.headers.pop(name, None)
        rollout.counts["forwarded"] += 1
        if self._cache is not None:
            file = self._cache / _digest(rollout.state, *_parts(flow.request), *_choice(flow.request)).hex()
            flow.metadata["keep"] = Kept(file=file, counts=rollout.counts)
        if flow.request.method not in READING:
            rollout.state = _digest(rollout.state, *_parts(flow.request))

    async def recall(self, flow: http.HTTPFlow) -> None:
        """Answer a request that was answered before."""
        kept: Kept = flow.metadata["keep"]
        flow.response = await asyncio.to_thread(_read, kept.file)
        kept.counts["cache_misses" if flow.response is None else "cache_hits"] += 1
        if flow.response is not None:
            del flow.metadata["keep"]

    async def keep(self, flow: http.HTTPFlow) -> None:
        """Keep a response that came from its host."""
        kept: Kept = flow.metadata.pop("keep")
        response = flow.response
        if response is not None and response.status_code == 200 and response.raw_content is not None:
            await asyncio.to_thread(_write, kept.file, response)


def _parts(request: http.Request) -> tuple[bytes, ...]:
    return request.method.encode(), request.url.encode(), request.raw_content or b""


def _choice(request: http.Request) -> tuple[bytes, ...]:
    return tuple(request.headers.get(name, "").encode("utf-8", "surrogateescape") for name in CHOOSING)


def _digest(*parts: bytes) -> bytes:
    """Of parts whose borders count."""
    sizes = b"".join(len(part).to_bytes(8) for part in parts)
    return hashlib.sha256(sizes + b"".join(parts)).digest()


def _write(file: Path, response: http.Response) -> None:
    """Whole or not at all: other processes read the folder too."""
    headers = [(name, value) for name, value in response.headers.items(multi=True) if name.lower() not in DERIVED]
    head = json.dumps({"status": response.status_code, "headers": headers}).encode()
    scratch = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    scratch.write_bytes(zlib.compress(head + b"\n" + (response.raw_content or b"")))
    scratch.replace(file)


def _read(file: Path) -> http.Response | None:
    try:
        head, _, body = zlib.decompress(file.read_bytes()).partition(b"\n")
    except FileNotFoundError:
        return None
    kept: dict[str, Any] = json.loads(head)
    headers = http.Headers([(name.encode(), value.encode()) for name, value in kept["headers"]])
    response = http.Response.make(kept["status"], b"", headers)
    response.raw_content = body  # encoded as it came, and as its headers say
    response.headers["content-length"] = str(len(body))
    return response
