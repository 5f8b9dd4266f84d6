"""A learner of one process, or of several ranks that the driver starts and tells what to do: one interface for both."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from clawexp.batch.batch import save
from clawexp.child import Child, ChildOptions, child
from clawexp.errors import ClawexpError, LearnerError
from clawexp.learner.learner import Learner
from clawexp.protocols import Algo
from clawexp.scratch import scratch_folder
from clawexp.spec import LearnerOptions

START_S = 300.0
TAIL_BYTES = 2000


class RankedLearner:
    """Ranks that do the same at the same time, each with a shard. Made by `open_learner`; methods are `Learner`'s."""

    def __init__(self, ranks: Sequence[tuple[Connection, Child]], scratch: Path) -> None:
        self._ranks, self._batch = ranks, scratch / "batch"
        self.step = self.version = self.vocab_size = 0
        self._ask("state")

    def update(self, batch: TensorDict) -> dict[str, float]:
        return self._ask("update", self._laid(batch))

    def evaluate_loss(self, batch: TensorDict) -> float:
        return self._ask("evaluate_loss", self._laid(batch))

    def decision_logprobs(self, batch: TensorDict) -> Tensor:
        return torch.tensor(self._ask("decision_logprobs", self._laid(batch)))

    def score(self, ids: Sequence[int], experts: NDArray[np.int16] | None = None) -> Tensor:
        return torch.tensor(self._ask("score", list(ids), experts))

    def save(self, folder: Path) -> None:
        self._ask("save", folder.absolute())

    def resume(self, folder: Path) -> None:
        self._ask("resume", folder.absolute())

    def export(self, folder: Path) -> None:
        self._ask("export", folder.absolute())

    def _laid(self, batch: TensorDict) -> Path:
        """Where the ranks find it."""
        shutil.rmtree(self._batch, ignore_errors=True)
        save(batch, self._batch)
        return self._batch

    def _ask(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer, once all have theirs. Raises what they raised, LearnerError where one is dead."""
        for rank, (connection, process) in enumerate(self._ranks):
            try:
                connection.send((method, arguments))
            except OSError as error:
                raise _death(rank, process) from error
        answers: dict[int, Any] = {}
        number = {connection: rank for rank, (connection, _) in enumerate(self._ranks)}
        while len(answers) < len(self._ranks):
            # One that died leaves the others waiting for it, so whoever speaks first is heard first.
            for ready in wait([connection for connection, rank in number.items() if rank not in answers]):
                assert isinstance(ready, Connection)
                rank = number[ready]
                try:
                    answers[rank] = ready.recv()
                except (EOFError, OSError) as error:
                    raise _death(rank, self._ranks[rank][1]) from error
        if errors := [answer for answer in answers.values() if isinstance(answer, ClawexpError)]:
            raise errors[0]
        result, state = answers[0]
        self.step, self.version, self.vocab_size = state["step"], state["version"], state["vocab_size"]
        return result


def _death(rank: int, process: Child) -> LearnerError:
    log = process.options.log
    tail = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    end = f"{log} ends with:\n{tail}" if tail else f"{log} is empty: was it killed, perhaps for want of memory?"
    return LearnerError(f"rank {rank} of the learner died; {end}")


@asynccontextmanager
async def open_learner(
    options: LearnerOptions, folder: Path, algo: Algo, temperature: float, logs: Path
) -> AsyncIterator[Learner | RankedLearner]:
    """A learner that starts from the checkpoint in `folder`; `learner.num_ranks` processes where that is above 1.

    Ranks write their stderr to `logs/rank-N.log`. Raises LearnerError, ConfigError.
    """
    if options.num_ranks == 1:
        yield Learner(options, folder, algo, temperature)
        return
    with scratch_folder("ranks-") as scratch, Listener(str(scratch / "driver"), family="AF_UNIX") as listener:
        async with AsyncExitStack() as stack:
            ranks = await _started(options, scratch, logs, stack, listener)
            for connection, _ in ranks:
                connection.send((options, folder, algo, temperature))
            yield RankedLearner(ranks, scratch)


async def _started(
    options: LearnerOptions, scratch: Path, logs: Path, stack: AsyncExitStack, listener: Listener
) -> list[tuple[Connection, Child]]:
    """All at once: most of the time goes into their imports."""
    threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.num_ranks)
    children: list[asyncio.Task[Child]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for rank in range(options.num_ranks):
                settings = {
                    "rank": rank,
                    "num_ranks": options.num_ranks,
                    "socket": str(scratch / "driver"),
                    "rendezvous": str(scratch / "rendezvous"),
                }
                context = child(_child(rank, logs, threads), settings)
                children.append(group.create_task(stack.enter_async_context(context)))
    except* LearnerError as errors:
        raise errors.exceptions[0] from None
    accepted: dict[int, Connection] = {}
    for _ in children:
        connection = listener.accept()
        stack.callback(connection.close)
        accepted[connection.recv()] = connection
    return [(accepted[rank], task.result()) for rank, task in enumerate(children)]


def _child(rank: int, logs: Path, threads: int) -> ChildOptions:
    return ChildOptions(
        name=f"rank {rank} of the learner",
        module="clawexp.learner.rank",
        log=logs / f"rank-{rank}.log",
        start_s=START_S,
        fault=LearnerError,
        environment={"OMP_NUM_THREADS": str(threads)},
    )
