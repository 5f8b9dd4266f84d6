"""What clients of several APIs say in their headers."""

from collections.abc import Mapping


def bearer(headers: Mapping[str, str]) -> str:
    """The token of `authorization`; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def counted_retry(headers: Mapping[str, str]) -> bool:
    """Whether one of the official clients that count their tries is at a further one."""
    return headers.get("x-stainless-retry-count", "0") != "0"
