import http.server
import threading

import pytest

from clawexp.runtime.registry import full_name, registry, unreachable


@pytest.mark.parametrize(
    ("image", "host", "full"),
    [
        ("debian", "docker.io", "docker.io/library/debian"),
        ("debian:12", "docker.io", "docker.io/library/debian:12"),
        ("me/tool", "docker.io", "docker.io/me/tool"),
        ("docker.io/library/debian", "docker.io", "docker.io/library/debian"),
        ("ghcr.io/a/b@sha256:0", "ghcr.io", "ghcr.io/a/b@sha256:0"),
        ("localhost/x", "localhost", "localhost/x"),
        ("127.0.0.1:5000/x:1", "127.0.0.1:5000", "127.0.0.1:5000/x:1"),
    ],
)
def test_a_name_says_its_registry(image: str, host: str, full: str) -> None:
    assert registry(image) == host
    assert full_name(image) == full


def test_a_registry_that_wants_credentials_is_there_and_a_closed_port_is_not() -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert unreachable(f"127.0.0.1:{server.server_port}") is None
        thread.join()
    assert "refused" in (unreachable(f"127.0.0.1:{server.server_port}") or "")
