"""A task's Dockerfile -> an image in the cache, by a podman of its own that is gone afterwards.

Its lines run as root of a user namespace that is nobody on the host, without a network unless that is asked for.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clawexp.errors import RuntimeFault
from clawexp.records import Command
from clawexp.runtime import image
from clawexp.runtime.containerfile import copied_from, reached, sources, substituted
from clawexp.runtime.ids import ids
from clawexp.runtime.podman_home import PodmanHome
from clawexp.runtime.process import DRAIN_S, start, to_the_end
from clawexp.runtime.reaper import discard
from clawexp.runtime.registry import full_name
from clawexp.runtime.rootless import enclosed
from clawexp.runtime.task_image import (
    PYTHON,
    WORKSPACE,
    TaskImage,
    Wanted,
    image_at,
    keep,
    move,
)

CALL_S = 300.0
"""How long anything but the Dockerfile's own lines may take."""
PULL_S = 1800.0
SAID_BYTES = 1_000_000
TAIL = 1500
"""Characters of a failed build's output in a message."""
PYTHONS = (PYTHON, "/usr/local/bin/python3")
NEEDED = "import _socket, _thread, json, os, signal, socket, sys; sys.exit(sys.version_info < (3, 10))"
"""What `door.py`, `forwarder.py` and the project's own harness take."""
NETWORK = re.compile(
    r"(?i)temporary failure (in name resolution|resolving)|could not resolve|name or service not known|bad address"
    r"|network is unreachable|failed to establish a new connection|EAI_AGAIN|ENOTFOUND|unable to resolve host"
)
"""How programs complain that there is no network."""
LOOK = """\
set -eu
umask 022
workspace=$1; tar=$2; name=$3; shift 3
place=$(podman --tmpdir /dev/shm/tmp image mount "$name")
for program; do
    if [ -e "$place$program" ] || [ -L "$place$program" ]; then echo "$program"; break; fi
done
tar -cf "$tar" -T /dev/null
if [ -d "$place$workspace" ]; then
    case "$(realpath "$place$workspace")" in
        "$place"/*) tar -C "$place$workspace" -cf "$tar" . ;;
        *) echo "$workspace is a link, and has to be a folder" >&2; exit 1 ;;
    esac
fi
"""
"""Prints where Python is, and packs the workspace."""


@dataclass(frozen=True, kw_only=True)
class Building:
    """How images are built."""

    base: str | None
    """What FROM stands for; None: for what it says where its registry answers, else for the base image."""
    network: Literal["none", "host"]
    limit_s: float
    at_once: int


@dataclass(frozen=True)
class _Said:
    """How a program inside ended: None where its time was over."""

    code: int | None
    stdout: str
    text: str
    """Its output, then its errors."""


async def build_image(need: Wanted, base: str | None, how: Building, pulling: asyncio.Lock) -> None:
    made = need.store(base)
    if image_at(made):  # another process was faster
        return
    discard(made)  # what it stood on is gone
    text = need.dockerfile.read_text()
    async with pulling:
        starts = {name: await _source(base or full_name(name)) for name in sources(text)}
        further = {name: await _source(full_name(name)) for name in copied_from(text)}
    below = list(dict.fromkeys(store for _, store in (*starts.values(), *further.values())))
    name = f"localhost/clawexp/{made.name}:latest"
    with image.workshop(below) as home:
        names = ({key: local for key, (local, _) in found.items()} for found in (starts, further))
        await _built(home, name, _laid(need.context, home, substituted(text, *names)), how)
        config = json.loads((await _checked(home, "inspect", "--format", "{{json .Config}}", name)).stdout)
        env = dict(word.split("=", 1) for word in config.get("Env") or ())
        workspace = need.workspace or _workdir(config)
        python = await _looked(home, name, workspace, env)
        await _tried(home, name, python)
        result = home.folder / "result"
        result.mkdir(mode=0o755)
        home.storage.rename(result / "storage")
        (home.state / "workspace.tar").rename(result / "workspace.tar")
        finished = TaskImage(
            store=made,
            name=name,
            base=base or ", ".join(starts),
            below=[store.name for store in below],
            workspace=workspace,
            python=python,
            env=env,
        )
        keep(finished, result)


async def _source(named: str) -> tuple[str, Path]:
    """What an image is called here, and the store that it is in: pulled into one of its own unless it is there."""
    if named == image.NAME:
        return image.NAME, image.store()
    store = image.cache() / f"from-{hashlib.sha256(named.encode()).hexdigest()[:12]}"
    name = f"localhost/clawexp/{store.name}:latest"
    if not store.is_dir():
        image.say(f"podman: pulling {named}")
        with image.workshop() as home:
            said = await _ran(home, home.command("pull", "--quiet", named), PULL_S)
            if said.code != 0:
                raise RuntimeFault(f"{named} cannot be pulled: {said.text[-TAIL:].strip()}")
            await _checked(home, "tag", said.stdout.split()[-1], name)
            move(home.storage, store)
    return name, store


def _laid(context: Path, home: PodmanHome, text: str) -> Path:
    """The context, and the Dockerfile beside it, as the podman there can read them."""
    copy = home.folder / "context"
    shutil.copytree(context, copy, symlinks=True)
    copy.chmod(0o755)
    # What an image says of its health would want systemd to look at it.
    (home.folder / "Dockerfile").write_text(f"{text}\nHEALTHCHECK NONE\n")
    (home.folder / "Dockerfile").chmod(0o644)
    if os.geteuid() == 0:
        for path in copy.rglob("*"):
            os.lchown(path, ids().root, ids().root)
    return copy


async def _built(home: PodmanHome, name: str, context: Path, how: Building) -> None:
    flags = ("--network", how.network, "--layers=false", "--format=docker", "--pull=never")
    file = home.folder / "Dockerfile"
    command = home.command("build", *flags, "--file", str(file), "--tag", name, str(context))
    said = await _ran(home, command, how.limit_s)
    if said.code != 0:
        raise RuntimeFault(_explained(file.read_text(), said, how))


def _explained(text: str, said: _Said, how: Building) -> str:
    """What a build ended at, why, and what to do."""
    line = reached(text, said.stdout)
    where = str(line) if line else "before its first line"
    tail = said.text[-TAIL:].strip()
    if said.code is None:
        return f"{where}: not done within {how.limit_s:g} s; runtime.build_s is the limit; it said: {tail}"
    advice = ""
    if how.network == "none" and NETWORK.search(said.text):
        advice = (
            "It reaches for the network, which builds do not have. Put what it fetches beside the Dockerfile and COPY "
            "it, name a base that has it (runtime.base), or let builds use this machine's network: "
            "runtime.build_network=host. "
        )
    return f"{where}: {advice}It said: {tail}"


def _workdir(config: dict[str, Any]) -> str:
    found = config.get("WorkingDir") or "/"
    return WORKSPACE if found == "/" else found


async def _looked(home: PodmanHome, name: str, workspace: str, env: dict[str, str]) -> str:
    """Pack the workspace; the image's Python."""
    further = (f"{folder}/python3" for folder in env.get("PATH", "").split(":") if folder)
    programs = dict.fromkeys((*PYTHONS, *further))
    argv = ["sh", "-c", LOOK, "sh", workspace, str(home.state / "workspace.tar"), name, *programs]
    said = await _ran(home, argv, CALL_S)
    if said.code != 0:
        raise RuntimeFault(f"its workspace {workspace} could not be packed: {said.text[-TAIL:].strip()}")
    if not said.stdout.strip():
        raise RuntimeFault(_without("python3"))
    return said.stdout.strip()


async def _tried(home: PodmanHome, name: str, python: str) -> None:
    run = ("run", "--rm", "--network=none", "--read-only", "--user=1000:1000", "--log-driver=none")
    said = await _ran(home, home.command(*run, f"--entrypoint={python}", name, "-I", "-S", "-c", NEEDED), CALL_S)
    if said.code != 0:
        raise RuntimeFault(f"{_without('a Python 3.10 that works')}; {python} says: {said.text[-TAIL:].strip()}")


def _without(what: str) -> str:
    return (
        f"the image has not {what}, which sandboxes and the project's own harness run on; let the Dockerfile bring it "
        "(on Debian the package python3), or start it from a base that has it: runtime.base=package:base"
    )


async def _checked(home: PodmanHome, *words: str) -> _Said:
    said = await _ran(home, home.command(*words), CALL_S)
    if said.code != 0:
        raise RuntimeFault(f"podman {words[0]}: {said.text[-TAIL:].strip()}")
    return said


async def _ran(home: PodmanHome, command: Sequence[str], limit_s: float) -> _Said:
    """Run enclosed to the end or to the limit. When this returns, raises or is cancelled, nothing of it is left."""
    argv = enclosed(command, home.env(), [home.folder, image.cache()])
    async with start(argv, Command(argv=argv, output_bytes=SAID_BYTES), cwd="/") as running:
        code = None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await running.ended()
                code = running.code()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGTERM)
            await to_the_end(running.ended())
        await asyncio.wait({running.stdout.ended, running.stderr.ended}, timeout=DRAIN_S)
        stdout, stderr = (tail.kept().decode(errors="replace") for tail in (running.stdout, running.stderr))
        return _Said(code, stdout, stdout + stderr)
