"""Trees -> smaller and fewer trees: what teaches nothing is removed, rollouts that begin alike are merged."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clawexp.protocols import Auxiliary, LeafFilter
from clawexp.tree.segment import Node, Segment, common_length, either
from clawexp.tree.tree import Tree


def prune(tree: Tree, leaf_filter: LeafFilter = "cause", auxiliary: Auxiliary = "drop") -> Tree:
    """Untrain what a filter rejects, and remove branches on which nothing is trained. For one rollout's tree.

    `cause` rejects duplicates and answers that were lost on their way: without effect on the reward, they
    only add variance. `paper` keeps, of the answers to one prompt, the one with the longest continuation.
    Both that and `auxiliary="drop"`, which untrains the answers of auxiliary calls, are as described in
    ClawGym II (arXiv:2608.16798); `auxiliary="full"` is unbiased. A number between 0 and 1 is the weight that their
    tokens get in `clawexp.batch.pack`: less than unbiased, and less variance.
    """
    rejected = _superseded(tree) if leaf_filter == "paper" else _without_effect(tree)
    if auxiliary == "drop":
        rejected |= {index for index, segment in enumerate(tree.segments) if segment.kind == "auxiliary"}
    trained = [segment.trained and index not in rejected for index, segment in enumerate(tree.segments)]
    kept = trained.copy()
    for index in reversed(range(len(kept))):
        parent = tree.segments[index].parent
        if kept[index] and parent >= 0:
            kept[parent] = True
    places = np.cumsum(kept) - 1
    segments = []
    for segment, keep, train in zip(tree.segments, kept, trained, strict=True):
        if keep:
            parent = int(places[segment.parent]) if segment.parent >= 0 else -1
            segments.append(replace(segment, parent=parent, trained=train))
    return replace(tree, segments=tuple(segments))


def _without_effect(tree: Tree) -> set[int]:
    lost = ("retry_infra", "duplicate")
    return {index for index, segment in enumerate(tree.segments) if segment.sampled and segment.edge in lost}


def _superseded(tree: Tree) -> set[int]:
    """All below the answers whose sibling goes on for longer."""
    ends, segments = tree.ends(), tree.segments
    reach = ends.copy()
    for index in reversed(range(len(segments))):
        parent = segments[index].parent
        if parent >= 0:
            reach[parent] = max(reach[parent], reach[index])
    rejected = set()
    for siblings in tree.answers_by_prompt():
        longest = max(siblings, key=lambda index: reach[index])
        rejected |= set(siblings) - {longest}
    for index, segment in enumerate(segments):
        if segment.parent in rejected:
            rejected.add(index)
    return rejected


def merge(trees: Sequence[Tree]) -> Tree:
    """Several rollouts in one tree: what begins alike stands once, and names all its owners.

    An answer is shared only as far as ids, versions and logprobs agree to the bit, and the kind of its call, so that
    one weight serves all owners; siblings of one rollout stay apart, so that its sampled tokens count once each. Of
    tokens that stand once, the experts are those that the first rollout tells.
    """
    top = Node()
    rollouts: list[str] = []
    for tree in trees:
        nodes: list[Node] = []
        for segment in tree.segments:
            owners = tuple(owner + len(rollouts) for owner in segment.owners)
            parent = nodes[segment.parent] if segment.parent >= 0 else top
            nodes.append(_graft(parent, replace(segment, owners=owners)))
        rollouts += tree.rollouts
    calls = tuple(own for tree in trees for own in tree.calls)
    splits = tuple(split for tree in trees for split in tree.splits)
    return Tree(rollouts=tuple(rollouts), calls=calls, segments=top.flatten(), splits=splits)


def _graft(node: Node, segment: Segment) -> Node:
    """Spell `segment` below `node`; the node where it ends."""
    while True:
        lengths = [_shared(there, segment) for _, there in node.branches()]
        shared = max(lengths, default=0)
        if not shared:
            return node.add(segment)
        node = node.children[lengths.index(shared)]
        assert node.segment is not None
        if shared < len(node.segment.ids):
            node.cut(shared)
        told = None if segment.experts is None else segment.experts[:shared]
        node.segment = replace(
            node.segment,
            owners=node.segment.owners + segment.owners,
            calls=node.segment.calls + segment.calls,
            experts=either(node.segment.experts, told),
        )
        if shared == len(segment.ids):
            return node
        segment = segment.cut(shared)[1]


def _shared(there: Segment, new: Segment) -> int:
    """So many tokens of `new` may stand as the first of `there`."""
    if there.sampled != new.sampled or there.trained != new.trained or set(there.owners) & set(new.owners):
        return 0
    if new.trained and there.kind != new.kind:
        return 0
    length = common_length(there.ids, new.ids)
    if new.sampled:
        length = min(length, common_length(there.logprobs, new.logprobs))
        length = min(length, common_length(there.versions, new.versions))
    return length
