import subprocess
import sys

import pytest

import clawexp
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import checkpoint_folder


def test_a_path_names_a_folder_in_the_package_in_the_cache_or_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = tmp_path / "clawexp" / "models" / "small"
    made.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (made / file).touch()
    assert checkpoint_folder("cache:small") == made
    assert checkpoint_folder(str(made)) == made
    with pytest.raises(ConfigError, match=f"{clawexp.__path__[0]}/checkpoints/none"):
        checkpoint_folder("package:none")


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigError, match=r"no model\.safetensors"):
        checkpoint_folder(str(tmp_path))
    with pytest.raises(ConfigError, match="neither absolute"):
        checkpoint_folder("models/small")
    with pytest.raises(ConfigError, match="prepare"):
        checkpoint_folder("cache:never-made")


@pytest.mark.parametrize("module", ["clawexp.model.checkpoint", "clawexp.engine.client", "clawexp.engine.embedded"])
def test_configuration_and_clients_need_no_torch(module):
    code = f"import sys, {module}; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
