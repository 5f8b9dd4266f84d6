"""A rollout's calls -> a prefix tree of token segments, in which every sampled token stands exactly once.

Only exact token ids decide where a call hangs. What the environment wrote may be cut anywhere; an answer is
cut only where a later prompt leaves it half way, and then the tree says so. Rewards come later (`batch`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clawexp.errors import LearnerError
from clawexp.records import LOGPROB_ROUNDING, Call, Cause, Rollout
from clawexp.tree.segment import Edge, Node, Segment, either

MAX_ID = 2**31 - 1
EDGE_OF_CAUSE: Mapping[Cause, Edge] = {
    "root": "continue",
    "continue": "continue",
    "template": "rewrite",
    "reminder": "rewrite",
    "rewrite": "rewrite",
    "tool_schema": "rewrite",
    "compaction": "compaction",
    "subagent": "subagent",
    # Asked again in other words: only an answer that was no use makes a harness do that.
    "retry": "retry_model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The prompt of call `by` leaves the answer of `call_id` after its first `at` ids: it was rewritten."""

    call_id: str
    at: int
    by: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """Segments in depth-first order, children in order of arrival. There may be several roots."""

    rollouts: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]
    """Of each rollout, in order of arrival."""
    segments: tuple[Segment, ...]
    splits: tuple[Split, ...] = ()

    def __post_init__(self) -> None:
        path: list[int] = []
        for index, segment in enumerate(self.segments):
            while path and path[-1] != segment.parent:
                path.pop()
            if not path and (segment.parent != -1 or segment.sampled):
                problem = "is an answer without a prompt" if segment.parent == -1 else "is not in depth-first order"
                raise LearnerError(
                    f"rollout {', '.join(self.rollouts)}, call {', '.join(segment.calls)}: "
                    f"segment {index} {problem}. Report it with the journal of the rollout."
                )
            path.append(index)

    @property
    def num_tokens(self) -> int:
        """Unique tokens."""
        return sum(len(segment.ids) for segment in self.segments)

    def ends(self) -> list[int]:
        """For each segment, the number of tokens from the root through its last."""
        ends: list[int] = []
        for segment in self.segments:
            ends.append(len(segment.ids) + (ends[segment.parent] if segment.parent >= 0 else 0))
        return ends

    def answers(self) -> dict[tuple[int, str], list[int]]:
        """(owner, call) -> the segments that hold its answer, in order."""
        pieces: dict[tuple[int, str], list[int]] = defaultdict(list)
        for index, segment in enumerate(self.segments):
            if segment.sampled:
                for key in zip(segment.owners, segment.calls, strict=True):
                    pieces[key].append(index)
        return pieces

    def answers_by_prompt(self) -> Iterable[list[int]]:
        """The first segments of answers, those to one prompt together, in order of arrival."""
        starts: dict[int, list[int]] = defaultdict(list)
        for index, segment in enumerate(self.segments):
            above = self.segments[segment.parent]
            if segment.sampled and not (above.sampled and above.calls == segment.calls):
                starts[segment.parent].append(index)
        return starts.values()

    def path(self, index: int) -> list[Segment]:
        """The segments from the root to `index`."""
        path = []
        while index >= 0:
            path.append(self.segments[index])
            index = path[-1].parent
        return path[::-1]


def grow(rollout: Rollout) -> Tree:
    """Hang every call at the longest beginning of its prompt that the tree already spells.

    Two calls that answered the identical prompt become siblings. Raises LearnerError where a call's lengths
    disagree, or a path of the tree does not spell its call to the token.
    """
    top, splits = Node(), []
    followed: set[str] = set()
    calls: dict[str, Call] = {}
    for call in rollout.calls:
        _check(call)
        if call.call_id in calls:
            raise LearnerError(
                f"rollout {rollout.id}: call {call.call_id} is there twice. Leave the rollout out; "
                "its journal is damaged."
            )
        node = _insert(top, call, calls, splits, followed)
        calls[call.call_id] = call
        if call.sampled_ids:
            node.add(_answer(call), arrived=len(calls))
    tree = Tree(rollouts=(rollout.id,), calls=(tuple(calls),), segments=top.flatten(), splits=tuple(splits))
    _check_paths(tree, calls)
    return _judge(tree, calls, followed)


def _check(call: Call) -> None:
    """Every sampled id has its logprob and its version, and a prompt before it."""
    covered = 0
    for span in call.spans:
        covered = span.end if span.start == covered and span.end >= span.start else -1
    problem = None
    ids = (call.prompt_ids, call.sampled_ids)
    if not call.prompt_ids:
        problem = "the prompt is empty"
    elif min(min(part, default=0) for part in ids) < 0 or max(max(part, default=0) for part in ids) > MAX_ID:
        problem = f"an id is not within 0 to {MAX_ID}"
    elif len(call.logprobs) != len(call.sampled_ids):
        problem = f"{len(call.sampled_ids)} sampled ids but {len(call.logprobs)} logprobs"
    elif wrong := [each for each in call.logprobs if not -math.inf < each <= LOGPROB_ROUNDING]:
        problem = f"a logprob is above 0 or not finite: {wrong[0]}"
    elif any(span.version < 0 for span in call.spans):
        problem = f"a version is below 0: {call.spans}"
    elif covered != len(call.sampled_ids):
        problem = f"the version spans do not cover the {len(call.sampled_ids)} sampled ids: {call.spans}"
    elif call.experts is not None and len(call.experts) >= len(call.prompt_ids) + len(call.sampled_ids):
        problem = f"experts of {len(call.experts)} tokens, and only those before the last were computed"
    if problem:
        raise LearnerError(
            f"rollout {call.rollout_id}, call {call.call_id}: {problem}. It cannot be scored; leave the rollout out."
        )


def _answer(call: Call) -> Segment:
    versions = [np.full(span.end - span.start, span.version, np.int32) for span in call.spans]
    return Segment(
        ids=np.array(call.sampled_ids, np.int32),
        parent=-1,
        sampled=True,
        logprobs=np.array(call.logprobs, np.float32),
        versions=np.concatenate(versions),
        owners=(0,),
        calls=(call.call_id,),
        edge="continue",
        kind=call.kind,
        trained=not call.rewritten,
        experts=_experts(call, len(call.prompt_ids), len(call.prompt_ids) + len(call.sampled_ids)),
    )


def _experts(call: Call, start: int, end: int) -> NDArray[np.int16] | None:
    """What a call tells of the tokens `[start, end)` of its prompt and answer."""
    if call.experts is None:
        return None
    first = len(call.prompt_ids) + len(call.sampled_ids) - 1 - len(call.experts)
    place = np.arange(start, end) - first
    told = (place >= 0) & (place < len(call.experts))
    rows = np.full((end - start, *call.experts.shape[1:]), -1, np.int16)
    rows[told] = call.experts[place[told]]
    return rows


def _insert(top: Node, call: Call, earlier: Mapping[str, Call], splits: list[Split], followed: set[str]) -> Node:
    """Spell `call`'s prompt; the node where it ends.

    Adds to `splits` where it leaves an answer half way, and the call of the answer that it goes on from, or from whose
    beginning, to `followed`.
    """
    prompt = np.array(call.prompt_ids, np.int32)
    node, inside, shared = top.longest(prompt)
    if node.segment is not None and inside < len(node.segment.ids):
        node.cut(inside)
    if node.segment is not None and call.experts is not None:  # which may tell of an answer's last token
        told = _experts(call, shared - len(node.segment.ids), shared)
        node.segment = replace(node.segment, experts=either(node.segment.experts, told))
    edge = EDGE_OF_CAUSE[call.cause]
    if node.segment is not None and node.segment.sampled:
        answered = earlier[node.segment.calls[0]]
        followed.add(answered.call_id)
        at = shared - len(answered.prompt_ids)
        if at < len(answered.sampled_ids):
            splits.append(Split(call_id=answered.call_id, at=at, by=call.call_id))
        elif call.cause in ("continue", "retry"):
            edge = "tool" if answered.verdict == "tool_calls" else "continue"
    if shared == len(prompt):
        return node
    return node.add(_environment(call, shared, edge), arrived=len(earlier) + 1)


def _environment(call: Call, start: int, edge: Edge) -> Segment:
    """Its prompt from there on."""
    return Segment(
        ids=np.array(call.prompt_ids[start:], np.int32),
        parent=-1,
        sampled=False,
        logprobs=np.empty(0, np.float32),
        versions=np.empty(0, np.int32),
        owners=(0,),
        calls=(call.call_id,),
        edge=edge,
        kind=call.kind,
        trained=False,
        experts=_experts(call, start, len(call.prompt_ids)),
    )


def _check_paths(tree: Tree, calls: Mapping[str, Call]) -> None:
    """Root to answer spells prompt and answer, and each sampled id stands in one segment."""
    for (_, call_id), pieces in tree.answers().items():
        call = calls[call_id]
        spelt = np.concatenate([segment.ids for segment in tree.path(pieces[-1])])
        sampled = sum(len(tree.segments[piece].ids) for piece in pieces)
        whole = np.array(call.prompt_ids + call.sampled_ids, np.int32)
        if sampled != len(call.sampled_ids) or not np.array_equal(spelt, whole):
            raise LearnerError(
                f"rollout {call.rollout_id}, call {call_id}: the tree does not spell the call. "
                "Report it with the journal of the rollout."
            )


def _judge(tree: Tree, calls: Mapping[str, Call], followed: set[str]) -> Tree:
    """Mark the answers that repeat another one, or that a later call for the identical prompt replaced."""
    answers = {call_id: pieces for (_, call_id), pieces in tree.answers().items()}
    edges: dict[int, Edge] = {}
    for siblings in tree.answers_by_prompt():
        distinct: dict[tuple[int, ...], Call] = {}
        for call in (calls[tree.segments[index].calls[0]] for index in siblings):
            if distinct.setdefault(call.sampled_ids, call) is not call:
                edges |= dict.fromkeys(answers[call.call_id], "duplicate")
        attempts = list(distinct.values())
        if any(call.cause == "retry" for call in attempts[1:]):
            used = [call for call in attempts if call.call_id in followed] or attempts[-1:]
            for call in attempts:
                if call not in used:
                    edges |= dict.fromkeys(answers[call.call_id], _retried(call))
    segments = (replace(segment, edge=edges.get(index, segment.edge)) for index, segment in enumerate(tree.segments))
    return replace(tree, segments=tuple(segments))


def _retried(call: Call) -> Edge:
    spoilt = call.verdict in ("malformed", "cut") and call.finish_reason != "abort"
    return "retry_model" if spoilt else "retry_infra"
