"""Hosts that an experiment allows are really asked, or, where they are deterministic, asked once.

A cached response is found by method, URL and body, and by what the rollout has changed so far: every request that
may change something (all but GET and HEAD) makes the next ones different.
"""

import hashlib
import json
import secrets
import zlib
from pathlib import Path
from typing import Any

from mitmproxy import http

from clawexp.capture.open_rollout import OpenRollout

READING = ("GET", "HEAD")
OURS = ("proxy-authorization", "proxy-connection")
"""Headers for this proxy, which are nobody else's business."""
LONGEST_KEPT = 16 * 2**20
"""Bytes of a response that is kept."""
DERIVED = ("content-length", "transfer-encoding", "connection", "keep-alive")
"""Headers that belong to one transfer of a response."""


class Upstream:
    """What goes out, and what came back. Model calls never pass here."""

    def __init__(self, cache: Path | None) -> None:
        """`cache`: folder of kept responses; None keeps nothing."""
        self._cache = cache

    def ask(self, flow: http.HTTPFlow, rollout: OpenRollout) -> None:
        """Let the request out, or answer it from the cache."""
        for name in OURS:
            flow.request.headers.pop(name, None)
        rollout.counts["forwarded"] += 1
        file = self._file(flow.request, rollout)
        if flow.request.method not in READING:
            rollout.state = _digest(rollout.state, *_parts(flow.request))
        if file is None:
            return
        kept = _read(file)
        rollout.counts["cache_misses" if kept is None else "cache_hits"] += 1
        if kept is None:
            flow.metadata["keep"] = file
        else:
            flow.response = kept

    def answered(self, flow: http.HTTPFlow) -> None:
        """Keep a response that came from its host."""
        file = flow.metadata.pop("keep", None)
        response = flow.response
        if file is None or response is None or response.status_code != 200 or response.raw_content is None:
            return
        if len(response.raw_content) <= LONGEST_KEPT:
            _write(file, response)

    def _file(self, request: http.Request, rollout: OpenRollout) -> Path | None:
        return self._cache and self._cache / _digest(rollout.state, *_parts(request)).hex()


def _parts(request: http.Request) -> tuple[bytes, ...]:
    return request.method.encode(), request.url.encode(), request.raw_content or b""


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
