import asyncio
import contextlib
import hashlib
import http.server
import io
import json
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.records import Image, Task
from clawexp.runtime import image
from clawexp.runtime.image_build import Building
from clawexp.runtime.reaper import discard
from clawexp.runtime.task_image import possible_bases
from clawexp.runtime.task_images import TaskImages

HOW = Building(base="package:base", network="none", limit_s=300, at_once=2)
Make = Callable[..., TaskImages]
Processes = Callable[[str], list[int]]


@pytest.fixture
def make(tmp_path: Path, task: Task) -> Iterator[Make]:
    """Images of tasks with these Dockerfiles, by name; gone afterwards. They are like no others in the cache."""
    made: list[TaskImages] = []

    def images(how: Building = HOW, **texts: str) -> TaskImages:
        places = []
        for name, text in texts.items():
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / "Dockerfile").write_text(f"{text}\n# {tmp_path}\n")
            places.append(replace(task, id=name, workspace="/app", image=Image(context=folder, required=True)))
        found = TaskImages(how=how, places=tuple(places))
        made.append(found)
        return found

    image.build()
    yield images
    for found in made:
        for need in found.needed:
            for base in possible_bases(found.how.base):
                discard(need.store(base))


def lefts() -> list[Path]:
    """What builds left behind."""
    return list(image.workshops().iterdir())


def refusal(images: TaskImages) -> str:
    with pytest.raises(RuntimeFault) as refused:
        images.prepare()
    assert lefts() == []
    return str(refused.value)


def test_equal_contexts_are_built_once_and_an_unchanged_one_never_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN echo 1 > f"
    images = make(a=text, b=text)
    assert "1 images of tasks" in (images.prepared() or "")
    images.prepare()
    assert images.prepared() is None
    assert len(images.found()) == 2
    assert len({made.store for made in images.found().values()}) == 1
    assert "building image 1 of 1, of tasks a and 1 more" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    images.prepare()
    assert capsys.readouterr().err == ""
    assert lefts() == []


def test_every_line_that_fails_is_told_with_its_task_and_its_output(make: Make) -> None:
    said = refusal(
        make(
            one="FROM debian\nRUN true\nRUN echo nothing to make >&2; \\\n  exit 2",
            two="FROM debian\nCOPY none.txt /",
            far="FROM debian\nRUN python3 -c \"import urllib.request as u; u.urlopen('http://deb.debian.org')\"",
            bare="FROM scratch\nCOPY Dockerfile /",
            away="FROM debian\nRUN ln -s /usr /app",
        )
    )
    assert "5 of 5 images of tasks could not be built" in said
    assert "one/Dockerfile, line 3: RUN echo nothing to make >&2; exit 2: It said:" in said
    assert "task one" in said
    assert "line 2: COPY none.txt /" in said
    assert said.count("reaches for the network, which builds do not have") == 1
    assert "runtime.build_network=host" in said
    assert "bare/Dockerfile, the image has not python3" in said
    assert "/app is a link" in said


def test_a_build_ends_with_its_time_and_says_where_it_was(make: Make, processes: Processes) -> None:
    said = refusal(make(replace(HOW, limit_s=20), slow="FROM debian\nRUN sleep 765432"))
    assert "line 2: RUN sleep 765432: not done within 20 s; runtime.build_s is the limit" in said
    assert processes("765432") == []


async def test_a_build_that_is_interrupted_leaves_nothing(make: Make, processes: Processes) -> None:
    images = make(slow="FROM debian\nRUN sleep 765431")
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            build = group.create_task(images.build())
            while not processes("sleep 765431"):  # noqa: ASYNC110 - it is outside of this program
                await asyncio.sleep(0.05)
            build.cancel()
    assert processes("765431") == []
    assert lefts() == []


def test_lines_reach_this_machines_network_where_that_is_asked_for(make: Make) -> None:
    with served({"/x": b"fetched"}) as port:
        text = (
            "FROM debian\nWORKDIR /app\n"
            f"RUN python3 -c \"import urllib.request as u; open('f','wb').write(u.urlopen('http://127.0.0.1:{port}/x').read())\""
        )
        images = make(replace(HOW, network="host"), near=text)
        images.prepare()
    (made,) = images.found().values()
    with tarfile.open(made.packed) as tar:
        packed = tar.extractfile("./f")
        assert packed is not None
        assert packed.read() == b"fetched"


def test_from_means_what_it_says_where_its_registry_answers_and_the_base_image_where_not(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="cx-") as folder, served(tiny_image()) as port:
        Path(folder).chmod(0o711)
        name = f"127.0.0.1:{port}/tiny:1"
        config = Path(folder, "registries.conf")
        config.write_text(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(config))
        text = f"FROM {name}\nCOPY Dockerfile /copied"
        said = refusal(make(replace(HOW, base=None), tiny=text))
        assert "the image has not python3" in said, "the base image has it"
        assert f"pulling {name}" in capsys.readouterr().err
        assert "other:1 cannot be pulled" in refusal(
            make(replace(HOW, base=None), no=text.replace("tiny:1", "other:1"))
        )
    discard(image.cache() / f"from-{hashlib.sha256(name.encode()).hexdigest()[:12]}")
    capsys.readouterr()
    images = make(replace(HOW, base=None), tiny=text)
    images.prepare()
    assert f"127.0.0.1:{port} does not answer" in capsys.readouterr().err
    assert [made.base for made in images.found().values()] == [image.NAME]


@contextlib.contextmanager
def served(answers: dict[str, bytes]) -> Iterator[int]:
    """Serve these paths on loopback; the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = answers.get(self.path)
            self.send_response(200 if content is not None else 404)
            if "/manifests/" in self.path:
                self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def tiny_image() -> dict[str, bytes]:
    """An image with one file in it, as a registry serves it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("one-file"))
    content = layer.getvalue()
    diff = f"sha256:{hashlib.sha256(content).hexdigest()}"
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    ).encode()
    kinds = (("config", "config.v1+json", config), ("layer", "layer.v1.tar", content))
    parts = {
        kind: {
            "mediaType": f"application/vnd.oci.image.{media}",
            "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
            "size": len(data),
        }
        for kind, media, data in kinds
    }
    manifest = json.dumps({"schemaVersion": 2, "config": parts["config"], "layers": [parts["layer"]]}).encode()
    blobs = {f"/v2/tiny/blobs/{parts[kind]['digest']}": data for kind, _, data in kinds}
    return {"/v2/": b"{}", "/v2/tiny/manifests/1": manifest, **blobs}
