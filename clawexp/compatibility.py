"""Which chosen options do not go together, found before anything starts.

Components declare what they need and what they give: a harness its dialect, its trust and the context it cannot do
without; a task its image and paths; a runtime what it can hold; an engine what it can serve. Each rule here looks at
two sides and names both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from clawexp.capture.dialects.table import DIALECTS
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import checkpoint_folder, has_experts, other_than_ours, read_config
from clawexp.protocols import Choosy, Equipped, Imitating, Listed, Relying, Unisolated
from clawexp.spec import Experiment, Particular, Telling


@dataclass(frozen=True, kw_only=True)
class Clash:
    """Two options that do not go together."""

    sides: str
    """`harness=pi runtime=local`"""
    why: str
    """What is missing, and the nearest choice that has it."""


def clashes(experiment: Experiment) -> Iterator[Clash]:
    """All of them; none where the experiment is possible."""
    yield from _tasks_and_runtime(experiment)
    yield from _runtime_and_machine(experiment)
    yield from _harness_and_runtime(experiment)
    yield from _harness_and_programs(experiment)
    yield from _harness_and_boundary(experiment)
    yield from _harness_and_model(experiment)
    yield from _model_and_engine(experiment)
    yield from _learner_and_engine(experiment)


def _tasks_and_runtime(experiment: Experiment) -> Iterator[Clash]:
    if isinstance(experiment.taskset, Listed) and isinstance(experiment.runtime, Choosy):
        for place in experiment.taskset.places():
            reason = experiment.runtime.refuses(place)
            if reason:
                yield Clash(sides=_sides(experiment, "taskset", "runtime"), why=reason)


def _runtime_and_machine(experiment: Experiment) -> Iterator[Clash]:
    """A launcher's machines are others than this."""
    if isinstance(experiment.runtime, Relying) and experiment.launcher is None:
        reason = experiment.runtime.misses()
        if reason:
            yield Clash(sides=_sides(experiment, "runtime"), why=reason)


def _harness_and_runtime(experiment: Experiment) -> Iterator[Clash]:
    if isinstance(experiment.runtime, Unisolated):
        for name, harness in experiment.harness.items():
            reason = experiment.runtime.distrusts(harness.needs())
            if reason:
                yield Clash(sides=f"harness={name} {_sides(experiment, 'runtime')}", why=reason)


def _harness_and_programs(experiment: Experiment) -> Iterator[Clash]:
    if not isinstance(experiment.runtime, Equipped):
        return
    for name, harness in experiment.harness.items():
        for group, place in [("runtime", None), *(("taskset", place) for place in experiment.places())]:
            reason = experiment.runtime.lacks(harness.needs(), place)
            if reason:
                yield Clash(sides=f"harness={name} {_sides(experiment, group)}", why=reason)
                break  # of many tasks, one says it


def _harness_and_boundary(experiment: Experiment) -> Iterator[Clash]:
    spoken = sorted(dialect.name for dialect in DIALECTS)
    for name, harness in experiment.harness.items():
        if harness.dialect not in spoken:
            why = f"{name} speaks {harness.dialect}, and the boundary {', '.join(spoken)}; choose harness=builtin"
            yield Clash(sides=f"harness={name} capture=default", why=why)


def _harness_and_model(experiment: Experiment) -> Iterator[Clash]:
    model = experiment.model
    for name, harness in experiment.harness.items():
        if harness.min_context > model.context:
            why = (
                f"the prompt and answers of {name} take {harness.min_context} tokens, and model.context is "
                f"{model.context}; choose a model with more, or harness=builtin"
            )
            yield Clash(sides=f"harness={name} model={model.name}", why=why)


def _model_and_engine(experiment: Experiment) -> Iterator[Clash]:
    engine = experiment.model.engine
    if isinstance(engine, Particular):
        reason = engine.refuses(experiment.model)
        if reason:
            yield Clash(sides=f"model={experiment.model.name} model/engine={_name(engine)}", why=reason)


def _learner_and_engine(experiment: Experiment) -> Iterator[Clash]:
    """What a learner would replay must be told it."""
    model, engine = experiment.model, experiment.model.engine
    if experiment.learner.routing == "own" or isinstance(experiment.algo, Imitating):
        return
    try:
        config = read_config(checkpoint_folder(model.path))
    except ConfigError:  # whoever opens the checkpoint says so, and what to do
        return
    if not has_experts(config):
        return
    why = None
    if not (isinstance(engine, Telling) and engine.tells_experts):
        why = "is a mixture of experts, and the engine does not tell which it sends tokens to"
    elif experiment.learner.lora is not None or other_than_ours(config):
        why = "is a mixture of experts that transformers computes, which are sent where its own router says"
    if why is not None:
        sides = f"learner.routing=replay model/engine={_name(engine)}"
        yield Clash(sides=sides, why=f"model {model.name} {why}; choose learner.routing=own")


def _sides(experiment: Experiment, *groups: str) -> str:
    return " ".join(f"{group}={_name(getattr(experiment, group))}" for group in groups)


def _name(component: object) -> str:
    """Of its option: components are named as their options are."""
    return type(component).__name__.lower()
