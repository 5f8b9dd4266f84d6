"""The program below podman that makes a container: what each isolates by, what brings it, what it takes to use it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OciRuntime = Literal["crun", "runc", "runsc", "kata", "krun"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of them."""

    program: str
    isolation: str
    """As a rollout's facts call it."""
    brought_by: str


NO_DEVICE = "it needs virtual machines"
KINDS: dict[OciRuntime, Kind] = {
    "crun": Kind(program="crun", isolation="container", brought_by="apt-get install crun"),
    "runc": Kind(program="runc", isolation="container", brought_by="apt-get install runc"),
    "runsc": Kind(program="runsc", isolation="gvisor", brought_by="apt-get install runsc (gVisor)"),
    "kata": Kind(program="kata-runtime", isolation="virtual machine", brought_by=f"{NO_DEVICE}; no Debian package"),
    "krun": Kind(program="krun", isolation="virtual machine", brought_by=f"{NO_DEVICE}; a build of crun with libkrun"),
}

GVISOR = """\
#!/bin/sh
# What podman passes on has no room for these.
exec {program} --root={state} --host-uds=open --network=none --ignore-cgroups "$@"
"""
"""The driver and the proxy are reached by sockets of the host, the network is loopback, limits are the driver's."""


def refused(name: OciRuntime) -> str | None:
    """Why it cannot be used on this machine, and what to do; None where it can."""
    kind = KINDS[name]
    absent = "" if shutil.which(kind.program) else f"{kind.program} is not in PATH: {kind.brought_by}"
    if kind.isolation != "virtual machine":
        return f"runtime.oci_runtime={name}: {absent}" if absent else None
    why = "a sandbox is given its streams as open descriptors, and none can be passed into a virtual machine"
    return "; ".join(filter(None, (f"runtime.oci_runtime={name}: {why}", absent, "use runsc")))


def lay_out(name: OciRuntime, folder: Path, state: str) -> str:
    """Write down in `folder` what podman shall start; lines for `[engine]` of its configuration.

    `state`: the folder in which gVisor keeps what it has to know of live containers.
    """
    if name != "runsc":
        return f'runtime = "{name}"\n'
    start = folder / "runsc"
    start.write_text(GVISOR.format(program=shutil.which("runsc"), state=state))
    start.chmod(0o755)
    return f'runtime = "runsc"\n[engine.runtimes]\nrunsc = ["{start}"]\n'


def takes_keys(name: OciRuntime) -> bool:
    """Whether each container would take a key of the kernel; gVisor's take none, and cannot be told not to."""
    return name != "runsc"
