"""What this machine can run, group by group, and what to do about the rest. Looks, and starts next to nothing."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from clawexp.admission import available_mb
from clawexp.commands.arguments import conf_folder, groups
from clawexp.commands.compose import composed
from clawexp.errors import ConfigError
from clawexp.launcher.queue import available
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.runtime import bubblewrap, rootless
from clawexp.runtime.cgroup import own_groups
from clawexp.spec import Preparable


@dataclass(frozen=True)
class Finding:
    """`Finding("runtime", "bubblewrap", False, "bwrap is not installed: apt-get install bubblewrap")`"""

    group: str
    option: str
    works: bool
    note: str


def run(argv: Sequence[str]) -> int:
    """Print a line for every option. The status is 0 when the default experiment can run."""
    if argv:
        raise ConfigError(f"doctor takes no arguments (it was given {' '.join(argv)})")
    findings = [*_machine(), *_runtimes(), *_harnesses(), *_models(), *_engines(), *_loggers(), *_launchers()]
    for finding in findings:
        print(f"{'ok  ' if finding.works else 'no  '} {finding.group + '=' + finding.option:<28} {finding.note}")
    needed = {("model", "tiny"), ("machine", "memory")}
    return 0 if all(f.works for f in findings if (f.group, f.option) in needed) else 1


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("machine", "cores", True, f"{cores} usable")
    free = available_mb()
    yield Finding("machine", "memory", free >= 2000, f"{free} MiB free; the default experiment takes about 2000")
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    yield Finding("machine", "gpu", gpus > 0, f"{gpus} found; the default experiment needs none")


def _runtimes() -> Iterator[Finding]:
    reason = bubblewrap.unavailable()
    yield Finding("runtime", "bubblewrap", reason is None, reason or "works")
    yield _podman()
    yield Finding("runtime", "local", True, "always works, and isolates nothing")


def _podman() -> Finding:
    reason = rootless.unavailable()
    if reason is None:
        line = instantiate(composed(["runtime=podman"]).runtime, _convert_="all").prepared()
        reason = f"its image is not built: {line}" if line else None
    limited = ", ".join(sorted(own_groups())) or "no resources"
    return Finding("runtime", "podman", reason is None, reason or f"works; sandboxes can be limited in {limited}")


def _harnesses() -> Iterator[Finding]:
    for name in groups(conf_folder())["harness"]:
        config = composed([f"harness={name}"]).harness
        lines = [instantiate(config[key], _convert_="all").prepared() for key in config]
        missing = "; ".join(line for line in lines if line)
        yield Finding("harness", name, not missing, f"not prepared: {missing}" if missing else "ready")


def _models() -> Iterator[Finding]:
    for name in groups(conf_folder())["model"]:
        path = OmegaConf.select(composed([f"model={name}"]), "model.path")
        try:
            yield Finding("model", name, True, str(checkpoint_folder(path)))
        except ConfigError as error:
            yield Finding("model", name, False, str(error))


def _engines() -> Iterator[Finding]:
    for name in groups(conf_folder())["model/engine"]:
        engine = instantiate(composed([f"model/engine={name}"]).model.engine, _convert_="all")
        line = engine.prepared() if isinstance(engine, Preparable) else None
        yield Finding("model/engine", name, line is None, f"not prepared: {line}" if line else "ready")


def _loggers() -> Iterator[Finding]:
    yield Finding("logger", "wandb", find_spec("wandb") is not None, "offline by default; no account needed")


def _launchers() -> Iterator[Finding]:
    yield Finding("launcher", "local", True, "this process")
    yield Finding("launcher", "subprocess", True, "this machine")
    note = "sbatch is here" if available() else "sbatch and srun are not on PATH: no cluster to submit to"
    yield Finding("launcher", "slurm", available(), note)
