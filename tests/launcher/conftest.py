"""A cluster for the whole session, and places to run in."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from cluster_place import ClusterPlace
from test_experiment import Place


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """A SLURM cluster of this session's own. Nothing of it is left at its end."""
    with cluster() as booted:
        yield booted


@pytest.fixture(scope="session")
def make_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], dict[str, Path]]]:
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as scratch:
        # Programs in sandboxes make sockets below it, so its path must be short.
        yield lambda: {"folder": tmp_path_factory.mktemp("place"), "scratch": Path(tempfile.mkdtemp(dir=scratch))}


@pytest.fixture
def place(make_folders: Callable[[], dict[str, Path]]) -> Place:
    return Place(**make_folders())


@pytest.fixture
def cluster_place(make_folders: Callable[[], dict[str, Path]], slurm: Cluster) -> ClusterPlace:
    return ClusterPlace(**make_folders(), cluster=slurm)
