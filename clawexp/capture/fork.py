"""A request that continues no earlier call -> why not, and whether it belongs to the main conversation."""

from collections.abc import Sequence

from clawexp.capture.exchange import Exchange, Kind, View
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
        longer = matched is None or len(call.view.messages) > len(matched.view.messages)
        if longer and call.rewritten and call.begins(view):
            return "rewrite", call.kind
        if longer and call.view.roles[-1] in ("user", "system") and call.begins(view, dropped=1):
            return "reminder", call.kind
    if matched is not None:
        rest = view.roles[len(matched.view.messages) + 1 :]
        return ("rewrite" if "assistant" in rest or not rest else "template"), matched.kind
    for call in earlier:
        if call.view.tools == view.tools and call.view.messages == view.messages:
            return "retry", call.kind
    if all(call.kind == "auxiliary" for call in earlier):
        return "root", "main"
    if request.auxiliary:
        return "subagent", "auxiliary"
    if overflowed and not view.has_tools:
        return "compaction", "auxiliary"
    for call in earlier:
        if call.begins(view, any_tools=True):
            return "tool_schema", call.kind if view.has_tools or not call.view.has_tools else "auxiliary"
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
    without_tools = main.view.has_tools and not view.has_tools
    if without_tools or (main.unfinished and _other_setting(view, main.view)):
        return "subagent", "auxiliary"
    return "rewrite", "main"


def _other_setting(view: View, main: View) -> bool:
    """Another system prompt or other tools. A call with tools is no side call of one without (a title,
    say)."""
    differs = view.system != main.system or view.tools != main.tools
    return differs and not (view.has_tools and not main.has_tools)


def _retooled(view: View, earlier: Sequence[Exchange]) -> bool:
    """Whether turns of the model stand in the request that were all sampled with other tools: a summary takes their
    place, another run of the harness keeps them."""
    told = frozenset(view.messages)
    kept = [call for call in earlier if call.answers & told]
    return bool(kept) and all(call.view.tools != view.tools for call in kept)


def _quotes(request: Request, earlier: Sequence[Exchange]) -> bool:
    """Whether what the model was told contains what it said: a summary, or a conversation to be
    summarised."""
    texts = [message.content for message in request.messages if message.role in ("system", "user")]
    said = [call.said for call in earlier if len(call.said) >= QUOTE]
    return any(quote in text for quote in said for text in texts)
