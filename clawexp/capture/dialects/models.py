"""Questions about the models: there is one, by whatever name."""

from collections.abc import Mapping
from typing import Any

from clawexp.capture.dialects.reply import json_reply
from clawexp.capture.message import Refused, Reply


def about_models(name: str, model: str, entry: Mapping[str, Any], listing: Mapping[str, Any], missing: str) -> Reply:
    """The list where no `name` is asked for, else the entry of that model. Raises Refused, with `missing`."""
    if not name:
        return json_reply(listing)
    if name == model:
        return json_reply(entry)
    raise Refused("not_found", missing)
