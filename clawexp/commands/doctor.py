"""What this machine can run, group by group, and what to do about the rest. Looks, and starts next to nothing."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from clawexp.admission import available_mb
from clawexp.commands.arguments import DECIDES, conf_folder, groups
from clawexp.commands.compose import composed
from clawexp.errors import ConfigError
from clawexp.launcher.queue import available
from clawexp.model.checkpoint import checkpoint_folder
from clawexp.protocols import Preparable
from clawexp.runtime import bubblewrap, rootless
from clawexp.runtime.cgroup import own_groups
from clawexp.runtime.podman import Podman
from clawexp.runtime.podman_probe import points


@dataclass(frozen=True)
class Finding:
    """`Finding("runtime", "bubblewrap", False, "bwrap is not installed: apt-get install bubblewrap")`"""

    group: str
    option: str
    works: bool
    note: str


def run(argv: Sequence[str]) -> int:
    """Print a line for every option. The status is 0 when the default experiment can run.

    With `runtime=podman`, and options of it: a line for everything that it depends on; 0 when it can be used.
    """
    if argv and argv[0] == "runtime=podman" and all(word.startswith("runtime.") for word in argv[1:]):
        return _podman(instantiate(composed(argv).runtime, _convert_="all"))
    if argv:
        raise ConfigError(
            f"doctor takes no arguments, or runtime=podman with options of it (it was given {' '.join(argv)})"
        )
    findings = [*_machine(), *_options()]
    for finding in findings:
        print(f"{'ok  ' if finding.works else 'no  '} {finding.group + '=' + finding.option:<28} {finding.note}")
    needed = {("model", "tiny"), ("machine", "memory")}
    return 0 if all(f.works for f in findings if (f.group, f.option) in needed) else 1


def _podman(options: Podman) -> int:
    for point in points(options.oci_runtime):
        print(f"{'ok  ' if point.good else 'no  '} {point.name:<16} {point.note}")
    obstacle = options.misses() or rootless.unavailable()
    if obstacle:
        print(obstacle)
    return 1 if obstacle else 0


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("machine", "cores", True, f"{cores} usable")
    free = available_mb()
    yield Finding("machine", "memory", free >= 2000, f"{free} MiB free; the default experiment takes about 2000")
    limited = ", ".join(sorted(own_groups()))
    yield Finding("machine", "limits", bool(limited), f"runtime=podman can limit {limited or 'nothing'} of a sandbox")
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    yield Finding("machine", "gpu", True, f"{gpus or 'none'} found; the default experiment needs none")


def _options() -> Iterator[Finding]:
    options = groups(conf_folder())
    for group in DECIDES:
        for option in options[group]:
            obstacle = _obstacle(group, option)
            yield Finding(group, option, obstacle is None, obstacle or NOTES.get((group, option), "ready"))


NOTES = {
    ("runtime", "local"): "always works, and isolates nothing",
    ("logger", "wandb"): "offline by default; no account needed",
}


def _obstacle(group: str, option: str) -> str | None:
    """Why this option cannot be used here, and what to do about it."""
    if group == "model":
        return _unconverted(option)
    if (group, option) == ("launcher", "slurm"):
        return _no_cluster()
    if group == "runtime" and (missing := RUNTIMES.get(option, lambda: None)()):
        return missing
    lines = [part.prepared() for part in _parts(group, option) if isinstance(part, Preparable)]
    return "; ".join(f"not prepared: {line}" for line in lines if line) or None


RUNTIMES = {"bubblewrap": bubblewrap.unavailable, "podman": rootless.unavailable}


def _parts(group: str, option: str) -> list[Any]:
    """What the option is made of, where that may have to be fetched or built."""
    config = composed([f"{group}={option}"])
    if group == "harness":
        return [instantiate(part, _convert_="all") for part in config.harness.values()]
    if group in ("runtime", "model/engine"):
        return [instantiate(OmegaConf.select(config, group.replace("/", ".")), _convert_="all")]
    return []


def _no_cluster() -> str | None:
    if not available():
        return "sbatch and srun are not on PATH: no cluster to submit to"
    return None if find_spec("submitit") else "it needs Submitit: pip install 'clawexp[slurm]'"


def _unconverted(model: str) -> str | None:
    try:
        checkpoint_folder(OmegaConf.select(composed([f"model={model}"]), "model.path"))
    except ConfigError as error:
        return str(error)
    return None
