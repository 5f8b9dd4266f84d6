"""A request's bytes -> the JSON object that every dialect's body is."""

import json
from typing import Any

from clawexp.capture.message import Refused


def read_object(body: bytes) -> dict[str, Any]:
    """Raises Refused."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_request", f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(content, dict):
        raise Refused("invalid_request", "The body of the request must be a JSON object.")
    return content
