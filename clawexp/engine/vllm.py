"""vLLM as the engine: started in an environment of its own on GPUs or CPUs, or reached where it already runs."""

import json
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from clawexp.child import ChildOptions, child
from clawexp.component import component
from clawexp.engine.vllm_client import VllmClient
from clawexp.engine.vllm_environment import VllmEnvironment
from clawexp.errors import ConfigError, EngineError
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.spec import Model, Seconds

LOG = "engine.log"
KEY_VARIABLE = "VLLM_API_KEY"
OWN_LOAD = ("load_checkpoint", "path")
"""Of `clawexp.engine.inside_vllm`."""
PLAIN_LOAD = ("reload_weights", "weights_path")
"""Of vLLM itself."""


@component
class Build:
    """A build of vLLM."""

    install: tuple[str, ...]
    """Arguments of `pip install` that make its environment; file names are those of `clawexp/engine/locks`."""
    options: dict[str, Any]
    """Of vLLM's server, in its own words with `_` for `-`; true is `--NAME`, false `--no-NAME`, null leaves it out."""
    environment: dict[str, str | int]
    """Variables for its processes."""


@component
class Vllm:
    """vLLM on this machine, or at a URL."""

    device: Literal["auto", "cuda", "cpu"]
    """`auto`: `cuda` where there is an NVIDIA GPU."""
    python: str | None
    """Interpreter of an environment that has vLLM; None: `prepare` makes one."""
    url: str | None
    """Of a server that runs already, and can read the checkpoints of this machine; its key is in VLLM_API_KEY."""
    cuda: Build
    cpu: Build
    start_s: Seconds
    """For the start, and for each load of weights."""

    @property
    def tells_experts(self) -> bool:
        """Where it is asked to; the CPU build cannot."""
        return self._device == "cuda" and self._build.options.get("enable_return_routed_experts") is True

    @asynccontextmanager
    async def serve(self, model: Model, seed: int, folder: Path) -> AsyncIterator[VllmClient]:
        """Start vLLM, or connect to it. Raises ConfigError, EngineError."""
        async with self._started(model, seed, folder) if self.url is None else self._reached(self.url) as client:
            yield client

    @asynccontextmanager
    async def _reached(self, url: str) -> AsyncIterator[VllmClient]:
        key = os.environ.get(KEY_VARIABLE, "")
        async with VllmClient(url.rstrip("/"), key, self.start_s, PLAIN_LOAD) as client:
            await client.set_version(0)
            await client.refuse_raw_logprobs()
            yield client

    @asynccontextmanager
    async def _started(self, model: Model, seed: int, folder: Path) -> AsyncIterator[VllmClient]:
        """What it says goes to `folder/engine.log`."""
        options = ChildOptions(
            name="engine",
            module="clawexp.engine.vllm_server",
            log=folder / LOG,
            start_s=self.start_s,
            fault=EngineError,
            environment={},
        )
        with tempfile.TemporaryDirectory(prefix="clawexp-vllm-", ignore_cleanup_errors=True) as scratch:
            settings = {**self._settings(model, seed), "log": str(options.log), "scratch": scratch}
            async with child(options, settings) as server:
                url = f"http://127.0.0.1:{server.ready['port']}"
                client = VllmClient(url, settings["key"], self.start_s, OWN_LOAD)
                async with client:
                    await client.set_version(0)
                    yield client

    def prepared(self) -> str | None:
        """None when it can start now; otherwise the one line that prepares it."""
        if self.url is not None or self.python is not None or self._environment.ready:
            return None
        return f"python -m clawexp prepare model/engine=vllm model.engine.device={self._device}"

    def prepare(self) -> None:
        """Make its environment unless there is one. Raises EngineError."""
        if self.url is None and self.python is None:
            self._environment.make()

    @property
    def _device(self) -> Literal["cuda", "cpu"]:
        if self.device != "auto":
            return self.device
        return "cuda" if any(Path("/proc/driver/nvidia/gpus").glob("*")) else "cpu"

    @property
    def _build(self) -> Build:
        return self.cuda if self._device == "cuda" else self.cpu

    @property
    def _environment(self) -> VllmEnvironment:
        return VllmEnvironment(name=f"vllm-{self._device}", install=self._build.install)

    def _settings(self, model: Model, seed: int) -> dict[str, Any]:
        """What `clawexp.engine.vllm_server.Settings` reads."""
        if (line := self.prepared()) is not None:
            raise ConfigError(f"vLLM is not installed; run: {line}")
        python = Path(self.python) if self.python is not None else self._environment.python
        if not os.access(python, os.X_OK):
            raise ConfigError(f"model.engine.python: {python} is no program; name the interpreter of an environment")
        options = {
            **self._build.options,
            "model": str(checkpoint_folder(model.path)),
            "served_model_name": model.name,
            "max_model_len": model.context,
            # Of the engine as a whole: one for each request would end the CPU build.
            "seed": seed,
            "tokens_only": True,
            "disable_uvicorn_access_log": True,
            # Logprobs of the distribution that is sampled from, and none of the checkpoint's own sampling defaults.
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "middleware": "clawexp_inside_vllm.Guard",
            "worker_extension_cls": "clawexp_inside_vllm.CheckpointLoader",
        }
        return {
            "python": str(python),
            "arguments": list(arguments(options)),
            "environment": {name: str(value) for name, value in self._build.environment.items()},
            "key": secrets.token_urlsafe(32),
        }


def arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as a command line has them. `{"max_num_seqs": 64, "enforce_eager": True}` -> `--max-num-seqs=64 ...`"""
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value is True:
            yield f"--{flag}"
        elif value is False:
            yield f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}={value if isinstance(value, str) else json.dumps(value)}"
