"""A request that continues no earlier call -> why not, and whether it belongs to the main conversation."""

from collections.abc import Sequence

from clawexp.capture.exchange import Exchange, Kind
from clawexp.capture.history import View
from clawexp.capture.message import Request
from clawexp.records import Cause

QUOTE = 24
"""Characters: a shorter answer ("Done.") may stand in a new conversation by chance."""


def classify(
    request: Request, view: View, earlier: Sequence[Exchange], matched: Exchange | None, overflowed: bool
) -> tuple[Cause, Kind]:
    """Cause and kind. `matched`: the call that the request continues by meaning though not by tokens."""
    cause, kind = _classify(request, view, earlier, matched, overflowed)
    return cause, "auxiliary" if request.auxiliary else kind


def _classify(
    request: Request, view: View, earlier: Sequence[Exchange], matched: Exchange | None, overflowed: bool
) -> tuple[Cause, Kind]:
    for call in earlier:
        longer = matched is None or call.length > matched.length
        if longer and call.rewritten and call.begins(view):
            return "rewrite", call.kind
        if longer and call.end.role in ("user", "system") and call.begins(view, dropped=True):
            return "reminder", call.kind
    if matched is not None:
        rest = [turn.role for turn in view.turns[matched.length + 1 :]]
        return ("rewrite" if "assistant" in rest or not rest else "template"), matched.kind
    if all(call.kind == "auxiliary" for call in earlier):
        return "root", "main"
    if request.auxiliary:
        return "subagent", "auxiliary"
    if overflowed and not view.has_tools:
        return "compaction", "auxiliary"
    for call in earlier:
        if call.begins(view, any_tools=True):
            return "tool_schema", call.kind if view.has_tools or not call.has_tools else "auxiliary"
    if _retooled(view, earlier):
        return "tool_schema", "main" if view.has_tools else "auxiliary"
    if _quotes(request, earlier):
        return "compaction", "main" if view.has_tools else "auxiliary"
    return _apart(view, earlier)


def _apart(view: View, earlier: Sequence[Exchange]) -> tuple[Cause, Kind]:
    """A request that shares no answer with any call before it."""
    main = max((call for call in earlier if call.kind == "main"), key=lambda call: call.position, default=None)
    if main is None:
        return "rewrite", "main"
    without_tools = main.has_tools and not view.has_tools
    if without_tools or (main.unfinished and _other_setting(view, main)):
        return "subagent", "auxiliary"
    return "rewrite", "main"


def _other_setting(view: View, main: Exchange) -> bool:
    """Another system prompt or other tools. A call with tools is no side call of one without (a title, say)."""
    differs = view.end.system != main.end.system or view.tools != main.tools
    return differs and not (view.has_tools and not main.has_tools)


def _retooled(view: View, earlier: Sequence[Exchange]) -> bool:
    """Whether turns of the model stand in the request that were all sampled with other tools: a summary takes their
    place, another run of the harness keeps them."""
    told = {turn.meaning for turn in view.turns}
    kept = [call for call in earlier if call.answered in told]
    return bool(kept) and all(call.tools != view.tools for call in kept)


def _quotes(request: Request, earlier: Sequence[Exchange]) -> bool:
    """Whether what the model was told contains what it said: a summary, or a conversation to be summarised."""
    texts = [message.content for message in request.messages if message.role in ("system", "user")]
    said = [call.said for call in earlier if len(call.said) >= QUOTE]
    return any(quote in text for quote in said for text in texts)
