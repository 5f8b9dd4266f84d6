"""The rollouts and trees of a step -> what each rollout is worth, and one batch."""

from collections.abc import Mapping, Sequence

from tensordict import TensorDict

from clawexp.batch.pack import pack
from clawexp.batch.parts import best_fit
from clawexp.outcome import TRAINED
from clawexp.records import Rollout
from clawexp.spec import Experiment
from clawexp.tree.forest import merge, prune
from clawexp.tree.tree import Tree, grow


def worth_of(experiment: Experiment, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What every rollout that is trained on is worth, by id.

    Groups below `algo.min_group` are left out, and where a step may try further tasks for it, groups without spread.
    """
    usable = [_usable(experiment, rollout) for rollout in rollouts]
    sizes: dict[tuple[str, str], int] = {}
    for rollout, is_usable in zip(rollouts, usable, strict=True):
        sizes[rollout.group] = sizes.get(rollout.group, 0) + is_usable
    kept = {group for group, size in sizes.items() if size >= experiment.algo.min_group}
    if experiment.algo.extra_rounds:
        kept &= groups_with_spread(experiment, rollouts)
    valid = [ok and rollout.group in kept for rollout, ok in zip(rollouts, usable, strict=True)]
    # Where every call is a sample of its own, its rollout's reward stands in the group once for each.
    samples = [i for i, ok in enumerate(valid) for _ in range(_samples(experiment, rollouts[i]) if ok else 1)]
    rewards = [rollouts[i].reward or 0.0 for i in samples]
    found = experiment.algo.worth(rewards, [rollouts[i].group for i in samples], [valid[i] for i in samples])
    return {rollouts[i].id: value for i, value in zip(samples, found, strict=True) if valid[i]}


def _samples(experiment: Experiment, rollout: Rollout) -> int:
    """Calls that are trained, where each is a sample."""
    algo = experiment.algo
    if algo.normaliser != "call":
        return 1
    tree = prune(grow(rollout), algo.leaf_filter, algo.auxiliary)
    return max(1, len({segment.calls for segment in tree.segments if segment.trained}))


def groups_with_spread(experiment: Experiment, rollouts: Sequence[Rollout]) -> set[tuple[str, str]]:
    """Those whose rollouts do not all have one reward: the others teach an algorithm nothing that compares."""
    rewards: dict[tuple[str, str], set[float | None]] = {}
    for rollout in rollouts:
        if _usable(experiment, rollout):
            rewards.setdefault(rollout.group, set()).add(rollout.reward)
    return {group for group, found in rewards.items() if len(found) > 1}


def _usable(experiment: Experiment, rollout: Rollout) -> bool:
    return rollout.reward is not None and bool(rollout.calls) and experiment.outcome[rollout.outcome] in TRAINED


def packed(
    experiment: Experiment, trees: Sequence[Tree], rollouts: Sequence[Rollout], worth: Mapping[str, float]
) -> TensorDict:
    """Prune each tree, merge those of a group, lay them side by side. Where calls count alike, no trees are merged."""
    algo = experiment.algo
    groups: dict[tuple[str, str], list[Tree]] = {}
    by_id = {rollout.id: rollout for rollout in rollouts}
    for tree in trees:
        (rollout_id,) = tree.rollouts
        if rollout_id in worth:
            groups.setdefault(by_id[rollout_id].group, []).append(prune(tree, algo.leaf_filter, algo.auxiliary))
    if algo.normaliser == "call":
        merged = [tree for group in groups.values() for tree in group]
    else:
        merged = [merge(group) for group in groups.values()]
    order = best_fit([tree.num_tokens for tree in merged], experiment.learner.token_budget)
    return pack(
        [merged[index] for index in order],
        worth,
        algo.normaliser,
        algo.constant_tokens,
        groups={rollout_id: by_id[rollout_id].group for rollout_id in worth},
        auxiliary_weight=algo.auxiliary if isinstance(algo.auxiliary, float) else 1.0,
    )
