"""The two ways to the model: what each tells a harness.

By base URL, a setting of the harness points at the boundary. By interception nothing does: the harness calls its
vendor's host, the environment names a proxy and a certificate authority, and the boundary answers in the host's name.
"""

import dataclasses
from urllib.parse import urlsplit

from clawexp.capture.dialects.table import DIALECTS
from clawexp.capture.roots import system_roots
from clawexp.protocols import Harness
from clawexp.records import Launch, Link, Sandbox
from clawexp.spec import Model

NO_KEY = "sk-none"
"""What an intercepted harness takes for its key: it must have one, and the proxy's credential is what counts."""
CERTIFICATE = ".clawexp-ca.pem"
PROXY = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
DIRECT = ("NO_PROXY", "no_proxy")
TRUST = (
    *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "CODEX_CA_CERTIFICATE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO"),
)
"""Each is read by another family of programs, most of which then trust nobody else: so the file holds the system's
authorities too."""


def link_to(model: Model, harness: Harness, key: str, sandbox: Sandbox) -> Link:
    """What the harness is told of the model."""
    intercepted = harness.way_in == "interception"
    return Link(
        url=_vendor(harness.dialect) if intercepted else sandbox.facts["proxy_url"],
        socket=None if intercepted else sandbox.facts.get("proxy_socket"),
        key=NO_KEY if intercepted else key,
        model=model.name,
        context=model.context,
        max_tokens=model.max_tokens,
    )


def through_proxy(launch: Launch, key: str, certificate: bytes, sandbox: Sandbox) -> Launch:
    """The same launch with a proxy for whatever is not on loopback. The key goes into the environment alone."""
    address = urlsplit(sandbox.facts["proxy_url"])
    proxy = f"http://clawexp:{key}@{address.hostname}:{address.port}"
    env = {
        **launch.command.env,
        **dict.fromkeys(PROXY, proxy),
        **dict.fromkeys(DIRECT, "127.0.0.1,localhost"),
        **dict.fromkeys(TRUST, f"{sandbox.home}/{CERTIFICATE}"),
    }
    return Launch(
        command=dataclasses.replace(launch.command, env=env),
        files={**launch.files, f"~/{CERTIFICATE}": certificate.rstrip() + b"\n" + system_roots().read_bytes()},
    )


def _vendor(dialect: str) -> str:
    return next(each.vendor for each in DIALECTS if each.name == dialect)
