"""What a harness asked of sampling -> what the engine is asked: the experiment decides, and every difference
is noted."""

from collections.abc import Mapping
from typing import Any

from clawexp.capture.message import Request, TooLong
from clawexp.records import Edit

NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "seed": None,
    "stop": None,
    "stop_sequences": None,
    "n": 1,
    "response_format": {"type": "text"},
    "output_format": None,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
"""Fields whose other values would draw from another distribution than the one that is learned, or choose among
answers. With these values they do nothing."""
UNSET = (None, [], {}, "")


def decide(request: Request, temperature: float, room: int) -> tuple[dict[str, Any], tuple[Edit, ...]]:
    """Submitted sampling, and the edits that led there. `room`: tokens that the answer may take at most."""
    edits = list(request.edits)
    asked = request.requested.get("temperature")
    if asked is not None and asked != temperature:
        edits.append(Edit(rule="sampling.temperature", before=asked, after=temperature))
    requested = dict(request.requested)
    if "tool_choice" in requested and not request.tools:  # engines refuse a choice among no tools
        edits.append(Edit(rule="tools.choice_without_tools", before=requested.pop("tool_choice"), after=None))
    for name, neutral in NEUTRAL.items():
        value = requested.get(name)
        if value not in UNSET and value != neutral:
            edits.append(Edit(rule=f"sampling.{name}", before=value, after=neutral))
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    if request.max_tokens is not None and max_tokens < request.max_tokens:
        edits.append(Edit(rule="sampling.max_tokens", before=request.max_tokens, after=max_tokens))
    return {"temperature": temperature, "max_tokens": max_tokens}, tuple(edits)


def room_for(prompt_tokens: int, context: int, max_tokens: int) -> int:
    """Tokens that an answer to such a prompt may take. Raises TooLong where there is no room for one."""
    if prompt_tokens >= context:
        raise TooLong(prompt_tokens, context)
    return min(max_tokens, context - prompt_tokens)
