"""Words of the command line -> overrides, and the values that a sweep over one of them takes."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from clawexp.commands.arguments import conf_folder
from clawexp.commands.problem import Problem

PLAIN = re.compile(r"[\w./-]+")
"""What Hydra reads as it stands."""
UNREADABLE = "not an override; write key=value, and put quotes around brackets, commas and letters beyond ASCII"


def parse(overrides: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read, each with at least one value, and what is wrong with the others."""
    parser = _parser()
    parsed: list[Override] = []
    problems: list[Problem] = []
    for text in overrides:
        try:
            (override,) = parser.parse_overrides([text])
        except HydraException:
            problems.append(Problem(where=text, what=UNREADABLE))
            continue
        if override.is_delete() or choices(override):
            parsed.append(override)
        else:
            problems.append(Problem(where=text, what="sweeps over no value at all"))
    return parsed, problems


def _parser() -> OverridesParser:
    """With a loader, which `glob(...)` needs to know the options of a group."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder()), job_name="clawexp"):
        return OverridesParser.create(GlobalHydra.instance().config_loader())


def assigned(key: str, value: str) -> str:
    """An override that gives `key` this text, whatever characters are in it. `resume='/a b/c=d'`"""
    if PLAIN.fullmatch(value):
        return f"{key}={value}"
    escaped = value.replace("'", "\\'")
    return f"{key}='{escaped}'"


def choices(override: Override) -> list[Any]:
    """The values that a sweep over this override takes; one where it is no sweep."""
    if override.is_delete():
        return []
    if override.is_sweep_override():
        return list(override.sweep_iterator())
    return [override.value()]


def first_point(override: Override) -> str:
    """This override, narrowed to the first value of its sweep."""
    if not override.is_sweep_override():
        return str(override.input_line)
    return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


def sweep_points(overrides: Sequence[str]) -> list[list[str]]:
    """Every point of a sweep as plain overrides; one where nothing is swept. `[["a=1", "b=2"], ["a=1", "b=3"]]`"""
    parsed = _parser().parse_overrides(list(overrides))
    values = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parsed
    ]
    return [list(point) for point in itertools.product(*values)]
