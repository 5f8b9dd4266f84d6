"""Token in, token out: what a rollout asked and was told so far -> the exact prompt ids of its next call.

The longest earlier call whose messages and answer begin the new request gives its ids; only the rest is
rendered. Attachment looks at content alone, so concurrent calls may come and go in any order.
"""

from collections.abc import Sequence

import numpy as np

from clawexp.capture.exchange import Exchange, View
from clawexp.capture.fork import classify
from clawexp.capture.meaning import answer_meanings
from clawexp.capture.message import Answer, Request
from clawexp.capture.rendering import Rendering
from clawexp.records import Edit


class Conversation:
    """The calls of one rollout."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._exchanges: list[Exchange] = []
        self._overflowed = False

    def arrive(self, request: Request, body: bytes, position: int) -> Exchange:
        """Take a request in: its prompt ids, and how it stands to the calls before it. Raises Refused."""
        view = View.of(request)
        matched = self._longest(view)
        ids = self._extended(matched, request)
        if matched is not None and ids is not None:
            matched.continued = True
            cause, kind = "continue", matched.kind
        else:
            ids = self._rendering.render(request.messages, request.tools)
            for earlier in self._exchanges:
                earlier.continued |= earlier.rewritten and earlier.begins(view)
            cause, kind = classify(request, view, self._exchanges, matched, self._overflowed)
        exchange = Exchange(
            position=position,
            view=view,
            body=body,
            cause=cause,
            kind=kind,
            prompt=np.asarray(ids, dtype=np.int32),
            edits=self._new_edits(request, view),
        )
        self._exchanges.append(exchange)
        return exchange

    def count(self, request: Request) -> int:
        """Tokens that the prompt of such a request has, by the same rendering. Raises Refused."""
        ids = self._extended(self._longest(View.of(request)), request)
        return len(ids if ids is not None else self._rendering.render(request.messages, request.tools))

    @property
    def size(self) -> int:
        """Calls committed or in flight."""
        return len(self._exchanges)

    def leave(self, exchange: Exchange) -> None:
        """Forget a request that got no answer."""
        self._exchanges.remove(exchange)

    def overflow(self) -> None:
        """A request did not fit the context; what comes next without tools is compaction."""
        self._overflowed = True

    def attach(self, exchange: Exchange) -> tuple[Exchange | None, int]:
        """The committed call that shares the longest beginning with this prompt, and how many ids that is.

        A prompt that begins with all of that call continues it, whatever the messages looked like.
        """
        best, longest = None, 0
        for earlier in self._exchanges:
            shared = 0 if earlier.sequence is None else _shared(earlier.sequence, exchange.prompt)
            if shared > longest:
                best, longest = earlier, shared
        if best is not None and best.sequence is not None and longest == len(best.sequence) and not best.rewritten:
            exchange.cause = "continue"
        return best, longest

    def settle(
        self, exchange: Exchange, call_id: str, sampled_ids: Sequence[int], answer: Answer, *, rewritten: bool = False
    ) -> None:
        """Add what was sampled, once it is in the journal: later requests may build on it, unless the harness was told
        something else."""
        exchange.call_id, exchange.answer, exchange.rewritten = call_id, answer, rewritten
        exchange.answers = answer_meanings(answer.message)
        sequence = np.concatenate([exchange.prompt, np.asarray(sampled_ids, dtype=np.int32)])
        for earlier in self._exchanges:
            if earlier.sequence is not None and _shared(earlier.sequence, sequence) == len(earlier.sequence):
                earlier.sequence = sequence[: len(earlier.sequence)]
                earlier.prompt = sequence[: len(earlier.prompt)]
        exchange.prompt, exchange.sequence = sequence[: len(exchange.prompt)], sequence
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
        matches = [earlier for earlier in self._exchanges if not earlier.rewritten and earlier.begins(view)]
        return max(matches, key=lambda earlier: (len(earlier.view.messages), earlier.position), default=None)

    def _extended(self, matched: Exchange | None, request: Request) -> list[int] | None:
        """Prompt ids that continue `matched`; None where there is none or the template cannot."""
        if matched is None:
            return None
        assert matched.sequence is not None
        ids, num_prompt = matched.sequence.tolist(), len(matched.prompt)
        prompt, sampled = ids[:num_prompt], ids[num_prompt:]
        new_messages = request.messages[len(matched.view.messages) + 1 :]
        return self._rendering.extend(prompt, sampled, new_messages, request.tools)

    def _new_edits(self, request: Request, view: View) -> tuple[Edit, ...]:
        """Those of messages and tools that no committed call has: each is noted once."""
        if not (request.message_edits or request.tool_edits):
            return ()
        committed = [earlier for earlier in self._exchanges if earlier.answer is not None]
        known = max((earlier.told(view) for earlier in committed), default=0)
        tools = () if any(earlier.view.tools == view.tools for earlier in committed) else request.tool_edits
        return (*tools, *(edit for place, edit in request.message_edits if place >= known))


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common beginning."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
