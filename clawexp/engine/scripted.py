"""The embedded engine with a script in the model's place: what it says is fixed, and every figure beside it is real.

A loop over a real harness becomes deterministic, and can be looked at from end to end, without a model that is able to
do the task. Ids are those of the checkpoint's tokenizer; the logprob of each is the one that the model of the present
weights gives it at the temperature that was asked for, computed as for a sampled id. So engine and learner can be
compared, and a step of learning moves the weights towards the script as it would towards any other answer. What is
*not* true of these answers is that they were drawn at random from that distribution.

The engine looks at nothing but prompts: see `clawexp.engine.script`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clawexp.component import component
from clawexp.engine.client import EngineClient
from clawexp.engine.embedded import Embedded
from clawexp.engine.flaws import Flaws
from clawexp.records import Task
from clawexp.spec import Model


class ScriptedClient(EngineClient):
    """A connection to an engine that must be told of the tasks."""

    async def expect(self, tasks: Sequence[Task]) -> None:
        """Tell of tasks that are about to be tried. Raises EngineError where they cannot be told apart."""
        told = [{"instruction": task.instruction, "solution": task.oracle} for task in tasks]
        await self._ask("POST", "/tasks", {"tasks": told})


@component
class Scripted(Embedded):
    """Plays `calls` in every rollout, or where that is empty, each task's known solution; then it says that it is
    done."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    """Tool calls in the words of `Task.oracle`, whatever the harness names its tools."""

    flaws: Flaws
    """What goes wrong on purpose."""

    def refuses(self, model: Model) -> str | None:
        """A script can read prompts of one form alone."""
        if model.rendering == "qwen3":
            return None
        return f"a script reads prompts of model.rendering=qwen3, not {model.rendering}; use model=scripted"

    def settings(self, model: Model, seed: int) -> dict[str, Any]:
        return {**super().settings(model, seed), "calls": self.calls, "flaws": asdict(self.flaws)}

    def client(self, url: str, key: str) -> ScriptedClient:
        return ScriptedClient(url, key, self.start_s)
