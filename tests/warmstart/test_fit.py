import random

from clawexp.model.decoder import Policy
from clawexp.model.tree_pass import tree_logprobs
from clawexp.warmstart.demonstration import Demonstration
from clawexp.warmstart.fit import Fit, common, fit, forest, tiny_config
from clawexp.warmstart.initial import initialise
from clawexp.warmstart.rehearsal import rehearse


def test_demonstrations_share_their_beginning_once() -> None:
    group = [Demonstration([5, 6, 7, 8], [False, False, True, True]), Demonstration([5, 6, 9], [False, False, True])]
    assert common(group) == 2
    tokens, targets = forest([group, group])
    assert tokens.input_ids.tolist() == [5, 6, 7, 8, 9] * 2
    assert tokens.parent.tolist() == [-1, 0, 1, 2, 1, -1, 5, 6, 7, 6]
    assert tokens.position.tolist() == [0, 1, 2, 3, 2] * 2
    assert targets.tolist() == [2, 3, 4, 7, 8, 9]


def test_rehearsals_say_only_what_can_be_known() -> None:
    rng = random.Random(0)
    for _ in range(200):
        found = rehearse(rng, range(1000, 4000), start=1)
        assert len(found.ids) == len(found.sampled)
        said = [place for place, mine in enumerate(found.sampled) if mine]
        assert all(found.ids[place] in found.ids[:place] for place in said)


def test_the_first_weights_already_copy() -> None:
    policy = Policy(tiny_config(4096, 2))
    initialise(policy, seed=1, start=1)
    rng = random.Random(0)
    tokens, targets = forest([[rehearse(rng, range(9, 4096), 1) for _ in range(16)]])
    logprobs = tree_logprobs(policy, tokens, targets, 1.0, "chain")
    assert float(logprobs.mean()) > -6.0  # chance is 1/4096, a logprob of -8.3


def test_fitting_lowers_the_loss_and_saves() -> None:
    policy = Policy(tiny_config(512, 2))
    initialise(policy, seed=1, start=1)
    sequences = [rehearse(random.Random(seed), range(9, 512), 1) for seed in range(8)]

    def loss() -> float:
        tokens, targets = forest([sequences])
        return -float(tree_logprobs(policy, tokens, targets, 1.0, "chain").mean())

    before, saved = loss(), []
    plan = Fit(steps=10, lr=1e-3, warmup=2)
    fit(policy, lambda step: [sequences], plan, lambda: saved.append(1))
    assert loss() < before - 0.1
    assert saved
    assert plan.rate(0) < plan.rate(1) == plan.lr > plan.rate(9)
