"""Which registry an image is in, and whether that answers here."""

import urllib.error
import urllib.request

DOCKER_HUB = "docker.io"
ENDPOINTS = {DOCKER_HUB: "registry-1.docker.io"}
ANSWER_S = 10.0


def registry(image: str) -> str:
    """`debian:12` -> `docker.io`, `ghcr.io/a/b` -> `ghcr.io`, as every builder of Dockerfiles reads a name."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB


def full_name(image: str) -> str:
    """The name with its registry, so that no configuration of short names is asked. `docker.io/library/debian:12`"""
    host = registry(image)
    if image.startswith(f"{host}/"):
        return image
    return f"{host}/{image}" if "/" in image else f"{host}/library/{image}"


def unreachable(host: str) -> str | None:
    """Why a registry does not answer, by the user's proxy where there is one; None where it does."""
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    try:
        with urllib.request.urlopen(f"{scheme}://{ENDPOINTS.get(host, host)}/v2/", timeout=ANSWER_S):
            return None
    except urllib.error.HTTPError:  # it wants credentials: it is there
        return None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
