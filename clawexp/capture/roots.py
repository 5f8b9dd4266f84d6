"""The certificate authorities that this system trusts."""

import ssl
from pathlib import Path

import certifi


def system_roots() -> Path:
    """A file of certificates: the one that `SSL_CERT_FILE` names, else the system's, else those that came with Python
    packages."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file or certifi.where())
