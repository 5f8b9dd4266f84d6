from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tiny_engine import Checkpoint, embedded, model

from clawexp.engine.client import EngineClient


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(tmp_path_factory.mktemp("checkpoint") / "first", seed=0)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Other weights of the same shape."""
    return Checkpoint(tmp_path_factory.mktemp("checkpoint") / "second", seed=1)


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A mixture of experts."""
    return Checkpoint(tmp_path_factory.mktemp("checkpoint") / "mixture", seed=0, experts=True)


@pytest.fixture
async def served(checkpoint: Checkpoint, tmp_path: Path) -> AsyncIterator[EngineClient]:
    """A live engine of the first checkpoint."""
    engine = embedded()
    async with engine.serve(model(checkpoint, engine), 0, tmp_path) as client:
        yield client
