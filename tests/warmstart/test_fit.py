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


def test_a_policy_with_the_first_weights_learns_to_copy_in_sixty_steps() -> None:
    policy = Policy(tiny_config(512, 2))
    initialise(policy, seed=1)

    def sequences(rng: random.Random) -> list[Demonstration]:
        return [rehearse(rng, range(9, 512), 1) for _ in range(16)]

    def loss() -> float:
        rng = random.Random(99)
        tokens, targets = forest([sequences(rng)])
        return -float(tree_logprobs(policy, tokens, targets, 1.0, "chain").mean())

    before = loss()
    saved: list[int] = []
    plan = Fit(steps=60, lr=2e-3, warmup=5)
    fit(
        policy,
        lambda step: [sequences(random.Random(step))],
        plan,
        lambda: saved.append(1),
    )
    assert loss() < before - 2.0
    assert saved
    assert plan.rate(0) < plan.rate(4) == plan.lr > plan.rate(59)
