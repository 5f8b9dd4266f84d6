"""One rank of a learner, a process of its own: does what the driver tells all ranks, and answers.

python -m clawexp.learner.rank        (started by `clawexp.learner.ranked_learner`, never by hand)
"""

from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clawexp.batch.batch import load
from clawexp.child import read_settings, say_ready
from clawexp.errors import ClawexpError, LearnerError
from clawexp.learner.device import take_gpu
from clawexp.learner.learner import Learner
from clawexp.learner.sharded import Sharded


class Rank:
    """What may be asked of a rank: the methods of `Learner`, with folders for batches and lists for tensors."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def state(self) -> dict[str, Any]:
        learner = self._learner
        return {"step": learner.step, "version": learner.version, "vocab_size": learner.vocab_size}

    def update(self, batch: Path) -> dict[str, float]:
        return self._learner.update(load(batch))

    def evaluate_loss(self, batch: Path) -> float:
        return self._learner.evaluate_loss(load(batch))

    def decision_logprobs(self, batch: Path) -> list[float]:
        return self._learner.decision_logprobs(load(batch)).tolist()

    def score(self, ids: list[int], experts: NDArray[np.int16] | None) -> list[float]:
        return self._learner.score(ids, experts).tolist()

    def save(self, folder: Path) -> None:
        self._learner.save(folder)

    def resume(self, folder: Path) -> None:
        self._learner.resume(folder)

    def export(self, folder: Path) -> None:
        self._learner.export(folder)


def main() -> None:
    """Serve until the driver hangs up."""
    settings = read_settings()
    with Client(settings["socket"], family="AF_UNIX") as driver:
        say_ready({})
        number = settings["rank"]
        driver.send(number)
        options, folder, algo, temperature = driver.recv()
        try:
            device = take_gpu(options, number)
            ranks = Sharded(number, settings["num_ranks"], Path(settings["rendezvous"]), device.type)
            rank = Rank(Learner(options, folder, algo, temperature, ranks))
        except ClawexpError as error:
            driver.recv()  # its first question, which this answers
            driver.send(error)
            return
        serve(number, rank, driver)


def serve(number: int, rank: Rank, driver: Connection) -> None:
    """Answer `(method, arguments)` with `(result, state)`, or with the error that all ranks came to."""
    while True:
        try:
            method, arguments = driver.recv()
        except EOFError:
            return
        try:
            driver.send((getattr(rank, method)(*arguments), rank.state()))
        except ClawexpError as error:
            driver.send(error)
        except RuntimeError as error:  # torch's: no memory is left, or a rank is missed, whose own end says why
            driver.send(LearnerError(f"rank {number} of the learner ends: {error}"))
            raise


if __name__ == "__main__":
    torch.set_num_interop_threads(1)
    main()
