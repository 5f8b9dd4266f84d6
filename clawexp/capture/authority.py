"""The certificate authority of one run, by which the proxy can answer for hosts that harnesses call by https.

Its key exists for as long as the run does, readable by its owner alone; harnesses get the certificate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mitmproxy.certs import CertStore

from clawexp.scratch import scratch_folder

KEY_BITS = 2048
FILES = "mitmproxy"
"""mitmproxy looks for files that begin so."""


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Known to the capture processes by its folder, to harnesses by its certificate."""

    folder: Path
    certificate: bytes
    """PEM."""


@contextmanager
def authority() -> Iterator[Authority]:
    """A new one, gone afterwards."""
    with scratch_folder("authority-") as folder:
        folder.chmod(0o700)
        CertStore.create_store(folder, FILES, KEY_BITS, organization="clawexp", cn="clawexp capture")
        yield Authority(folder=folder, certificate=(folder / f"{FILES}-ca-cert.pem").read_bytes())
