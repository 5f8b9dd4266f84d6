"""What the rooms of an experiment are asked for, as protocols: so that nobody needs a room, or torch, to speak of one.

The option files in `conf/` name the classes that fill them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from clawexp.outcome import Outcome
from clawexp.records import Finished, Image, Launch, Link, Needs, Owner, Sandbox, Scored, Task

Normaliser = Literal["rollout", "prompt", "token", "constant", "call"]
"""See `clawexp.batch.pack.pack`."""
Siblings = Literal["none", "anchor", "tree"]
"""See `clawexp.learner.siblings.beside_siblings`."""
LeafFilter = Literal["cause", "paper"]
Auxiliary = Literal["full", "drop"] | Annotated[float, Field(gt=0, lt=1)]
"""See `clawexp.tree.forest.prune` for both."""
WayIn = Literal["base_url", "interception"]
"""See `clawexp.capture.way_in`."""


class Placed(Protocol):
    """What decides whether a runtime can hold a task; a `Task` has it."""

    @property
    def id(self) -> str: ...
    @property
    def workspace(self) -> str | None: ...
    @property
    def folders(self) -> tuple[str, ...]: ...
    @property
    def image(self) -> Image | None: ...


@runtime_checkable
class Listed(Protocol):
    """A taskset whose tasks all lie there, so that a runtime can be asked about them before anything starts."""

    def places(self) -> Sequence[Placed]: ...


@runtime_checkable
class Choosy(Protocol):
    """A runtime that cannot hold every task."""

    def refuses(self, place: Placed) -> str | None:
        """Why it cannot hold this one, and what can; None where it can."""
        ...


@runtime_checkable
class Unisolated(Protocol):
    """A runtime that is no isolation."""

    def distrusts(self, needs: Needs) -> str | None:
        """Why it does not run such a harness, and what does; None where it runs it."""
        ...


@runtime_checkable
class Equipped(Protocol):
    """A runtime whose sandboxes have programs of their own, not this machine's."""

    def lacks(self, needs: Needs, place: Placed | None) -> str | None:
        """What a harness would miss there, and what has it; None where it misses nothing.

        `place`: a task, where it is known.
        """
        ...


@runtime_checkable
class Relying(Protocol):
    """A runtime that relies on programs of the machine it runs on."""

    def misses(self) -> str | None:
        """Which of them is not there, and what brings it; None where nothing is missing."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A runtime or engine that needs something fetched or built before it can be used; every harness is one too."""

    def prepared(self) -> str | None:
        """None when it can be used now; otherwise the one line that prepares it."""
        ...

    def prepare(self) -> None:
        """Fetch or build it unless it is there, with progress on stderr. Raises ClawexpError."""
        ...


@runtime_checkable
class Imaging(Protocol):
    """A runtime that builds the images of tasks."""

    def images(self, places: Sequence[Placed]) -> Preparable:
        """Those that these tasks need."""
        ...


@runtime_checkable
class Openable(Protocol):
    """A runtime whose sandboxes can share something alive, which is dear to start."""

    def open(self, folders: Sequence[Path], places: Sequence[Placed]) -> AbstractAsyncContextManager["Runtime"]:
        """The runtime to make sandboxes with while this lasts, for these tasks, or for others without an image.

        They and the proxy's socket will lie in `folders`.
        """
        ...


@runtime_checkable
class Distributed(Protocol):
    """A runtime on hosts: they bound how many sandboxes there can be, and not this machine's memory."""

    @property
    def sandboxes_by_host(self) -> Mapping[str, int]:
        """At once."""
        ...


@runtime_checkable
class Taskset(Protocol):
    """A data source. What it gives depends on its fields and the arguments alone, so a resumed run continues it."""

    def train(self, step: int, num_tasks: int, seed: int) -> Sequence[Task]: ...

    def evaluation(self, num_tasks: int) -> Sequence[Task]: ...


@runtime_checkable
class Harness(Protocol):
    """A black box, described: files to lay down, an environment, a command."""

    num_tasks: int
    """Tasks per step unless the experiment says otherwise."""
    group_size: int
    """Rollouts per task unless the experiment says otherwise."""
    eval_tasks: int
    """Held-out tasks of an evaluation unless the experiment says otherwise."""
    weight: float | None
    """Its share of the tasks when several harnesses are chosen; None: it weighs `num_tasks`."""
    min_context: int
    """Tokens that its first prompt and a short conversation take."""

    @property
    def dialect(self) -> str:
        """What it speaks to the model, by the name that the boundary has for it."""
        ...

    @property
    def way_in(self) -> WayIn:
        """How it comes to the model."""
        ...

    def needs(self) -> Needs: ...

    def prepared(self) -> str | None:
        """None when it can start now; otherwise the one line that prepares it."""
        ...

    def prepare(self) -> None:
        """Fetch and pin what it needs, with progress on stderr. Raises HarnessError."""
        ...

    def launch(self, task: Task, link: Link, sandbox: Sandbox) -> Launch: ...

    def outcome(self, finished: Finished) -> Outcome | None:
        """What its exit status means, where it means something; None otherwise."""
        ...

    def counts(self, finished: Finished) -> Mapping[str, float]:
        """What it says of its own run (turns, compactions, ...); empty where it says nothing."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """Where sandboxes live."""

    def sandbox(self, task: Task, needs: Needs, owner: Owner) -> AbstractAsyncContextManager[Sandbox]: ...


@runtime_checkable
class EngineHandle(Protocol):
    """A live engine behind the engine URL contract."""

    url: str
    key: str

    async def load(self, path: Path, version: int) -> None: ...

    async def score(self, ids: Sequence[int]) -> Scored: ...


@runtime_checkable
class TaskAware(Protocol):
    """An engine handle that must know of tasks before they are tried: it plays their known solutions."""

    async def expect(self, tasks: Sequence[Task]) -> None: ...


class CriticOptions(Protocol):
    """What an algorithm asks of a critic. Tensors are Any, since this module has no torch."""

    @property
    def lr(self) -> float: ...
    @property
    def width(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def warmup_batches(self) -> int: ...
    @property
    def warmup_gain(self) -> float | None: ...
    @property
    def warmup_limit(self) -> int: ...

    def advantages(self, returns: Any, value: Any, successor: Any, within: Any) -> Any: ...

    def loss(self, value: Any, old_value: Any, target: Any, weight: Any) -> Any: ...


@runtime_checkable
class Algo(Protocol):
    """How it learns: what a rollout is worth, a loss over sampled tokens, and the optimiser's numbers.

    Tensors are Any, since this module has no torch.
    """

    @property
    def lr(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def grad_clip(self) -> float: ...
    @property
    def normaliser(self) -> Normaliser: ...
    @property
    def constant_tokens(self) -> int: ...
    @property
    def min_group(self) -> int: ...
    @property
    def extra_rounds(self) -> int:
        """How often a step may try further tasks until it has its number of groups whose rewards differ."""
        ...

    @property
    def leaf_filter(self) -> LeafFilter: ...
    @property
    def auxiliary(self) -> Auxiliary: ...
    @property
    def recompute_old(self) -> bool: ...
    @property
    def updates(self) -> int: ...
    @property
    def reference_kl(self) -> float: ...
    @property
    def trains_all(self) -> bool: ...
    @property
    def rejects(self) -> bool: ...
    @property
    def sequence_ratio(self) -> bool: ...

    @property
    def critic(self) -> CriticOptions | None:
        """None: the advantage of a token is what its rollout is worth, and what its answer is beside its siblings."""
        ...

    @property
    def siblings(self) -> Siblings:
        """How answers to one prompt are compared; `none` where there is a critic."""
        ...

    @property
    def sibling_factor(self) -> float:
        """Weight of that comparison."""
        ...

    def worth(self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]) -> list[float]:
        """One for each rollout; 0 where it is not valid. `groups` are (task, harness). Raises LearnerError."""
        ...

    def keeps(self, log_ratio: Any, rollout: Any, num_rollouts: int) -> Any:
        """Which rollouts are trained on, bool [R]; asked where it `rejects`. See `clawexp.algo.correction`."""
        ...

    def clipped_advantage(self, advantage: Any, ratio: Any) -> Any:
        """Advantages with the ratios of their rollouts in them, both [M]; asked where it has a `sequence_ratio`."""
        ...

    def loss(
        self,
        logprob: Any,
        old_logprob: Any,
        behaviour_logprob: Any,
        positive: Any,
        negative: Any,
        share: Any = None,
        reference_logprob: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Summed over tokens, all float32 [n], as `clawexp.batch.batch` names them; and counts of tokens, by name.

        `share` is given where it `trains_all`, `reference_logprob` where `reference_kl` is above 0.
        """
        ...


@runtime_checkable
class Imitating(Protocol):
    """An algorithm that learns from rollouts of earlier runs, and needs none of its own."""

    @property
    def runs(self) -> Sequence[str]:
        """Their folders."""
        ...

    @property
    def min_reward(self) -> float:
        """Of a rollout that is imitated."""
        ...

    @property
    def held_out(self) -> float:
        """Share of the tasks that are not trained on."""
        ...

    @property
    def batch_rollouts(self) -> int:
        """A step."""
        ...


@runtime_checkable
class Logger(Protocol):
    """Who is told."""

    def open(self, run: Path, config: Mapping[str, Any], resume: bool) -> AbstractAsyncContextManager[Any]: ...


@runtime_checkable
class Launcher(Protocol):
    """Which other processes run the experiments of a sweep. A point is a `clawexp.launcher.point.Point`."""

    def launch(self, points: Sequence[Any], folder: Path) -> Sequence[str | None]:
        """Run each point, or hand it over; its error, None where there is none. `folder` is the sweep's."""
        ...

    def plan(self, num_points: int, folder: Path) -> str:
        """What `launch` would start."""
        ...
