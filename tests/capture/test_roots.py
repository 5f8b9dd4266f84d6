import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clawexp.capture.roots import system_roots
from clawexp.capture.way_in import CERTIFICATE, TRUST, through_proxy
from clawexp.records import Command, Launch

OURS = b"-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----"


def test_the_file_that_the_environment_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(OURS)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert system_roots() == own
    monkeypatch.delenv("SSL_CERT_FILE")
    assert ssl.create_default_context(cafile=str(system_roots())).get_ca_certs()


def test_who_trusts_the_proxy_still_trusts_whom_the_system_trusts() -> None:
    sandbox: Any = SimpleNamespace(home="/home/a", facts={"proxy_url": "http://127.0.0.1:1"})
    launch = through_proxy(Launch(command=Command(argv=("a",), env={}), files={}), "key", OURS, sandbox)
    bundle = launch.files[f"~/{CERTIFICATE}"]
    assert isinstance(bundle, bytes)
    assert bundle == OURS + b"\n" + system_roots().read_bytes()
    assert {launch.command.env[name] for name in TRUST} == {f"/home/a/{CERTIFICATE}"}
