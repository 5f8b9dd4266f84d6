import os
import subprocess
from pathlib import Path

import pytest

from clawexp.errors import RuntimeFault
from clawexp.runtime import image

ROOT = Path(__file__).parents[2]


def test_the_digest_is_of_names_and_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = image.digest(tmp_path)
    assert first == image.digest(tmp_path)
    (tmp_path / "a").write_text("2")
    second = image.digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, image.digest(tmp_path)}) == 3


def test_another_recipe_has_another_store() -> None:
    assert image.recipe() == ROOT / "containers/base"
    assert image.store().name == f"base-{image.digest(image.recipe())}"


def test_an_image_that_is_there_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeFault, match="apt-get install mmdebstrap"):
        image.build()
    image.store().mkdir(parents=True)
    image.build()


def test_a_failed_build_tells_its_cause_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "build.sh").write_text("echo no such suite >&2; exit 3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image, "recipe", lambda: recipe)
    with pytest.raises(RuntimeFault, match="ended with 3: no such suite"):
        image.build()
    assert list(image.cache().rglob("*")) == [image.workshops()]


def test_any_tar_of_a_root_becomes_an_image_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "build.sh").write_text(f'mkdir -p {tmp_path}/root/etc && tar -cf "$1" -C {tmp_path}/root .')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(image, "recipe", lambda: recipe)
    tmp_path.chmod(0o711)
    image.build()
    assert sorted(image.cache().iterdir()) == [image.workshops(), image.store()]
    assert list(image.workshops().iterdir()) == []
    assert list(image.store().glob("overlay/*/diff/etc"))


def test_the_recipe_is_a_sound_script() -> None:
    subprocess.run(["sh", "-n", str(image.recipe() / "build.sh")], check=True)
    assert os.access(image.recipe() / "build.sh", os.X_OK)
