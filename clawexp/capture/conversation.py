"""Token in, token out: what a rollout asked and was told so far -> the exact prompt ids of its next call.

The longest earlier call whose messages and answer begin the new request gives its ids; only the rest is
rendered. Attachment looks at content alone, so concurrent calls may come and go in any order.
"""

from collections.abc import Sequence

import numpy as np

from clawexp.capture.exchange import Exchange
from clawexp.capture.fork import classify
from clawexp.capture.history import History, View
from clawexp.capture.lineage import Lineage
from clawexp.capture.message import Answer, Request
from clawexp.capture.rendering import Rendering
from clawexp.records import Edit


class Conversation:
    """The calls of one rollout."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._history = History()
        self._exchanges: list[Exchange] = []
        self._lineage = Lineage()
        self._overflowed = False

    def arrive(self, request: Request, body: bytes, position: int) -> Exchange:
        """Take a request in: how it stands to the calls before it. `extend` or `render` gives it its prompt."""
        view = self._history.view(request)
        base = self._longest(view)
        again = next((earlier for earlier in view.end.asked if earlier.asks(view)), None)
        alike = again or base
        exchange = Exchange(
            position=position,
            end=view.end,
            thinking=view.thinking,
            thoughts={place: told for place, told in view.thoughts.items() if base is None or place > base.length},
            tools=view.tools,
            has_tools=view.has_tools,
            body=body,
            base=base,
            cause="continue" if again is None else "retry",
            kind="main" if alike is None else alike.kind,
            edits=self._new_edits(request, view, base),
        )
        if alike is None:
            self._fork(exchange, request, view, self._exchanges)
        self._exchanges.append(exchange)
        view.end.asked.append(exchange)
        return exchange

    def extend(self, exchange: Exchange, request: Request) -> bool:
        """Set the prompt of a request that has arrived to the ids of the call that it continues, and what it adds.

        False where it continues none, or the template cannot go on from those ids: then it forks. This and `render`
        may be done in a thread while other requests are served.
        """
        base = exchange.base
        if base is None:
            return False
        added = self._added(base, request)
        if base.sequence is None or added is None:
            if exchange.cause == "retry":
                return False
            earlier = self._exchanges[: self._exchanges.index(exchange)]
            self._fork(exchange, request, self._history.view(request), earlier)
            return False
        base.continued = True
        exchange.prompt = np.concatenate([base.sequence, np.asarray(added, dtype=np.int32)])
        return True

    def render(self, exchange: Exchange, request: Request) -> None:
        """Set the prompt of a request that has arrived to all of it anew. Raises Refused."""
        exchange.prompt = np.asarray(self._rendering.render(request.messages, request.tools), dtype=np.int32)

    def _fork(self, exchange: Exchange, request: Request, view: View, earlier: Sequence[Exchange]) -> None:
        """Note why the request continues no call before it."""
        for call in earlier:
            call.continued |= call.rewritten and call.begins(view)
        cause, kind = classify(request, view, earlier, exchange.base, self._overflowed)
        exchange.cause, exchange.kind = cause, kind

    def added_size(self, request: Request, exchange: Exchange) -> int:
        """Characters, about, that `extend` has to encode."""
        if exchange.base is None:
            return 0
        added = request.messages[exchange.base.length + 1 :]
        return sum(len(message.content) + len(message.reasoning) for message in added)

    def count(self, request: Request) -> int:
        """Tokens that the prompt of such a request has, by the same rendering. Raises Refused."""
        base = self._longest(self._history.view(request, keep=False))
        added = self._added(base, request)
        if base is not None and base.sequence is not None and added is not None:
            return len(base.sequence) + len(added)
        return len(self._rendering.render(request.messages, request.tools))

    @property
    def size(self) -> int:
        """Calls committed or in flight."""
        return len(self._exchanges)

    def leave(self, exchange: Exchange) -> None:
        """Forget a request that got no answer."""
        self._exchanges.remove(exchange)
        exchange.end.asked.remove(exchange)
        self._history.prune(exchange.end)

    def overflow(self) -> None:
        """A request did not fit the context; what comes next without tools is compaction."""
        self._overflowed = True

    def attach(self, exchange: Exchange, sampled_ids: Sequence[int]) -> None:
        """Find the call that shares the longest beginning with this prompt: `exchange.parent` and `shared`.

        A prompt that begins with all of that call continues it, whatever the messages looked like. From now on the
        call is one that others may share ids with, so it must be the next to be written.
        """
        self._lineage.hang(exchange, sampled_ids)
        parent = exchange.parent
        if parent is None or parent.sequence is None or parent.rewritten:
            return
        if exchange.shared == len(parent.sequence) and exchange.cause != "retry":
            exchange.cause = "continue"

    def settle(self, exchange: Exchange, answer: Answer, digests: tuple[bytes, bytes]) -> None:
        """Add an answer, once its call is in the journal: later requests may build on it, unless the harness was told
        something else. `digests` are what `clawexp.capture.meaning.digests` gives of its message."""
        exchange.answer = answer
        exchange.answered, exchange.thought = digests
        if exchange.kind == "main":
            self._overflowed = False

    def repeated(self, body: bytes, retried: bool) -> Exchange | None:
        """The committed call that this request asks for again because its answer never came.

        The same bytes alone are no proof, for a harness may want a second sample: either the answer is known
        to be undelivered, or the client says that it retries, and nothing was built on the answer.
        """
        same = [earlier for earlier in self._exchanges if earlier.body == body and earlier.answer is not None]
        lost = [earlier for earlier in same if not earlier.delivered]
        if not lost and retried:
            lost = [earlier for earlier in same if not earlier.continued]
        if not lost:
            return None
        lost[-1].delivered = True
        return lost[-1]

    def _longest(self, view: View) -> Exchange | None:
        """The longest earlier call that begins the request."""
        for turn in reversed(view.turns):
            for earlier in reversed(turn.asked):  # of those with the same messages the last
                if not earlier.rewritten and earlier.begins(view):
                    return earlier
        return None

    def _added(self, base: Exchange | None, request: Request) -> list[int] | None:
        """Ids that follow those of `base`; None where there is none or the template cannot."""
        if base is None or base.sequence is None:
            return None
        length = len(base.prompt)
        new_messages = request.messages[base.length + 1 :]
        return self._rendering.extend(
            base.sequence[:length], base.sequence[length:].tolist(), new_messages, request.tools
        )

    def _new_edits(self, request: Request, view: View, base: Exchange | None) -> tuple[Edit, ...]:
        """Those of messages and tools that no committed call has: each is noted once."""
        if not (request.message_edits or request.tool_edits):
            return ()
        committed = [earlier for earlier in self._exchanges if earlier.answer is not None]
        known = 0 if base is None else base.length + 1
        for earlier in committed:
            if earlier.length >= known:  # others cannot share more
                known = max(known, earlier.told(view))
        tools = () if any(earlier.tools == view.tools for earlier in committed) else request.tool_edits
        return (*tools, *(edit for place, edit in request.message_edits if place >= known))
