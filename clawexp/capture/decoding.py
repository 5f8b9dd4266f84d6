"""A request's body as it was sent -> as it was meant: decompressed, within a limit, whatever it would unfold to."""

import zlib

import zstandard

from clawexp.capture.message import Refused

LONGEST_BODY = 32 * 2**20
"""Bytes. The longest context in tokens is far shorter; what is longer would only keep others waiting."""
MOST_STREAMS = 64
SLICE = 2**16
"""Bytes."""
EITHER_HEADER = zlib.MAX_WBITS + 32
"""zlib finds out by itself whether gzip or zlib wrote it."""


def decoded(body: bytes, encoding: str) -> bytes:
    """The body without its `content-encoding`. Raises Refused where it is none, or too long."""
    try:
        match encoding.strip().lower():
            case "" | "identity":
                content = body
            case "gzip" | "x-gzip" | "deflate":
                content = _inflated(body)
            case "zstd":
                reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
                content = reader.read(LONGEST_BODY + 1)
            case other:
                raise Refused("invalid_request", f"The body is encoded as {other!r}; gzip, deflate and zstd are read.")
    except (zlib.error, EOFError, zstandard.ZstdError) as error:
        raise Refused("invalid_request", f"The body is not what its content-encoding says: {error}") from error
    if len(content) > LONGEST_BODY:
        raise too_long(f"more than {LONGEST_BODY}")
    return content


def too_long(size: str) -> Refused:
    """The refusal of a body of `size` bytes."""
    return Refused("too_large", f"The body has {size} bytes; at most {LONGEST_BODY} are read.")


def _inflated(body: bytes) -> bytes:
    """Of one stream or, as gzip allows, of several behind each other; one byte more than the limit at most."""
    content, at = bytearray(), 0
    for _ in range(MOST_STREAMS):
        at = _inflate(memoryview(body), at, content)
        if at == len(body) or len(content) > LONGEST_BODY:
            return bytes(content)
    raise EOFError(f"it holds more than {MOST_STREAMS} streams")


def _inflate(body: memoryview, at: int, content: bytearray) -> int:
    """Add to `content` what the stream at `at` unfolds to; where it ends. zlib copies what it leaves over, so it is
    given a slice at a time.
    """
    stream, rest = zlib.decompressobj(EITHER_HEADER), b""
    while not stream.eof and len(content) <= LONGEST_BODY:
        if not rest:
            rest = body[at : at + SLICE]
            at += len(rest)
            if not rest:
                raise EOFError("it ends too soon")
        content += stream.decompress(rest, LONGEST_BODY + 1 - len(content))
        rest = stream.unconsumed_tail
    return at - len(stream.unused_data)
