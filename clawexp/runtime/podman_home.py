"""A podman of our own: its configuration and its storage in one folder, nothing of the user's or the machine's.

FOLDER/containers.conf, storage.conf
       state/            all that podman itself writes, with ids of the enclosure
"""

import json
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clawexp.runtime import oci
from clawexp.runtime.ids import ids

PARTS = ("storage", "home")
FLEETING = "/dev/shm"
"""What need not outlive podman goes into the enclosure's own memory: podman wants a path of at most 50 characters."""
MAX_FILES = 16384
CONFIG = """\
[containers]
# A container's own limit may not exceed the host's, and may be all that a container gets.
default_ulimits = ["nofile={files}:{files}"]
# Keys are few for each user, and each container would take one.
{keys}keyring = false
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
{runtime}"""
STORAGE = """\
[storage]
driver = "overlay"
runroot = "{fleeting}/run"
graphroot = "{storage}"
rootless_storage_path = "{storage}"
[storage.options]
additionalimagestores = {images}
"""
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
PASSED = (*PROXIES, *(name.upper() for name in PROXIES), "CONTAINERS_REGISTRIES_CONF")
"""What podman may know of the user's own environment: the way to registries."""


@dataclass(frozen=True, kw_only=True)
class PodmanHome:
    """Where one podman lives."""

    folder: Path
    oci_runtime: oci.OciRuntime = "crun"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def storage(self) -> Path:
        return self.state / "storage"

    def make(self, images: Sequence[Path] = ()) -> None:
        """Lay it out. `images`: further stores, which it only reads."""
        self.folder.chmod(0o711)
        files = min(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        (self.folder / "containers.conf").write_text(
            CONFIG.format(
                files=files,
                keys="" if oci.takes_keys(self.oci_runtime) else "# ",
                runtime=oci.lay_out(self.oci_runtime, self.folder, f"{FLEETING}/runsc"),
            )
        )
        listed = json.dumps([str(path) for path in images])  # a list of strings in TOML too
        storage = STORAGE.format(fleeting=FLEETING, storage=self.storage, images=listed)
        (self.folder / "storage.conf").write_text(storage)
        for path in (self.state, *(self.state / part for part in PARTS)):
            path.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(path, ids().root, ids().root)

    def command(self, *words: str) -> list[str]:
        """`podman WORDS`, with what keeps it here."""
        return ["podman", "--tmpdir", f"{FLEETING}/tmp", *words]

    def env(self) -> dict[str, str]:
        """The whole environment of that podman."""
        outside = str(os.geteuid() or ids().root)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.state / "home"),
            "TMPDIR": str(self.state / "home"),
            "XDG_RUNTIME_DIR": FLEETING,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            # What podman tells itself when it has entered a user namespace: it is in one already.
            "_CONTAINERS_USERNS_CONFIGURED": "done",
            "_CONTAINERS_ROOTLESS_UID": outside,
            "_CONTAINERS_ROOTLESS_GID": outside,
            **{name: os.environ[name] for name in PASSED if name in os.environ},
        }
