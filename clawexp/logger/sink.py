"""Where a run's figures go: what every logger yields when it is opened."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from clawexp.records import Rollout


class Sink(Protocol):
    """An open logger. Metric names are `room/name`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None: ...

    def summary(self, values: Mapping[str, float]) -> None:
        """What the run came to, at its end."""
        ...

    def rewind(self, step: int) -> None:
        """Forget what was logged of this step and later ones: a resumed run does them again."""
        ...
