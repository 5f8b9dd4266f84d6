"""The base image: built from Debian packages by `containers/base/build.sh`, no registry involved, kept in the cache.

CACHE/podman/base-<digest of containers/base>/     an image store that containers read and nobody writes
             .builds/                              images that are being built
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clawexp.cache import cache_folder
from clawexp.errors import RuntimeFault
from clawexp.runtime.podman_home import PodmanHome
from clawexp.runtime.reaper import discard, sweep
from clawexp.runtime.rootless import call
from clawexp.scratch import mark

NAME = "localhost/clawexp/base:latest"
BUILD_S = 1800
IMPORT_S = 600
TAIL = 2000
"""Characters of a failed program's output in a message."""


def recipe() -> Path:
    """The folder of the base image: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "containers/base", package.parent / "containers/base"):
        if folder.is_dir():
            return folder
    raise RuntimeFault(f"the image's recipe is missing: no containers/base in or beside {package}")


def digest(folder: Path) -> str:
    """Of all files below a folder, by name and content."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def cache() -> Path:
    """Where the image stores of this user lie."""
    return cache_folder("podman")


def store() -> Path:
    """The base image's store, there or not; another recipe has another."""
    return cache() / f"base-{digest(recipe())}"


def build() -> None:
    """Build the base image unless it is there. It appears whole or not at all. Raises RuntimeFault."""
    target = store()
    if target.is_dir():
        return
    if shutil.which("mmdebstrap") is None:
        raise RuntimeFault("mmdebstrap, which builds the base image, is not in PATH; apt-get install mmdebstrap")
    with workshop() as home:
        tar = home.folder / "base.tar"
        say(f"podman: building the base image of {recipe()} from Debian packages; this takes minutes")
        _bootstrap(tar)
        imported = home.command("import", "--quiet", str(tar), NAME)
        call(imported, home.env(), [home.folder], IMPORT_S)
        # Whoever was faster has built the same.
        if not target.is_dir():
            home.storage.rename(target)
        say(f"podman: {NAME} in {target}")


def workshops() -> Path:
    """Where images are built: beside the stores, so that what is made can be moved there."""
    return cache() / ".builds"


@contextmanager
def workshop(images: Sequence[Path] = ()) -> Iterator[PodmanHome]:
    """A podman to build with, gone afterwards; what one that was killed has left goes first."""
    workshops().mkdir(parents=True, exist_ok=True)
    sweep(workshops())
    folder = Path(tempfile.mkdtemp(dir=workshops()))
    home = PodmanHome(folder=folder)
    try:
        mark(folder, folder.name)
        home.make(images)
        yield home
    finally:
        discard(folder)


def _bootstrap(tar: Path) -> None:
    command = ["sh", str(recipe() / "build.sh"), str(tar)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeFault(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise RuntimeFault(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-TAIL:].strip()}")
    tar.chmod(0o644)


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
