import gzip
import time
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from clawexp.capture.decoding import LONGEST_BODY, decoded
from clawexp.capture.message import Refused

WRITERS = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress, "identity": bytes}
LONG = bytes(LONGEST_BODY)
each_encoding = pytest.mark.parametrize("encoding", list(WRITERS))


@each_encoding
@given(body=st.binary(max_size=300))
def test_a_body_is_what_was_encoded(encoding: str, body: bytes) -> None:
    assert decoded(WRITERS[encoding](body), f" {encoding.upper()} ") == body


def test_gzip_may_come_in_several_pieces() -> None:
    assert decoded(gzip.compress(b"one, ") + gzip.compress(b"") + gzip.compress(b"two"), "gzip") == b"one, two"


def test_gzip_in_more_pieces_than_anybody_writes_is_refused_at_once() -> None:
    begin = time.process_time()
    with pytest.raises(Refused, match="more than 64 streams"):
        decoded(gzip.compress(b"") * (2**24 // len(gzip.compress(b""))), "gzip")
    assert time.process_time() - begin < 5
    assert decoded(gzip.compress(b"x" * 2**17) * 64, "gzip") == b"x" * 2**23


@each_encoding
def test_a_body_may_unfold_to_the_limit_and_not_to_a_byte_more(encoding: str) -> None:
    assert len(decoded(WRITERS[encoding](LONG), encoding)) == LONGEST_BODY
    with pytest.raises(Refused, match="at most 33554432 are read") as raised:
        decoded(WRITERS[encoding](LONG + b"\0"), encoding)
    assert raised.value.kind == "too_large"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@given(noise=st.binary(min_size=1, max_size=60), cut=st.integers(1, 12))
def test_what_is_not_what_it_says_is_refused(encoding: str, noise: bytes, cut: int) -> None:
    for sent in (b"\0" + noise, WRITERS[encoding](bytes(1000))[:-cut]):
        with pytest.raises(Refused, match="is not what its content-encoding says") as raised:
            decoded(sent, encoding)
        assert raised.value.kind == "invalid_request"


def test_what_is_no_zstd_is_refused() -> None:
    with pytest.raises(Refused, match="is not what its content-encoding says"):
        decoded(b"no zstd at all", "zstd")


def test_an_encoding_that_unfolds_without_a_limit_is_refused() -> None:
    with pytest.raises(Refused, match="encoded as 'br'"):
        decoded(b"", "br")
