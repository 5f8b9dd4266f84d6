"""Overrides -> a checked experiment. All problems of a command line are found at once, before torch is imported."""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from clawexp.commands.arguments import conf_folder, groups
from clawexp.commands.walk import key_paths, problems_of
from clawexp.errors import ConfigError
from clawexp.spec import Experiment

OPTIONAL_GROUPS = ("experiment",)
"""Groups that may be `null`."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a command line or a config file."""

    where: str
    """What the user wrote, or the key."""
    what: str


def refuse(problems: Sequence[Problem]) -> None:
    """Raise ConfigError listing all `problems`, if there are any."""
    if not problems:
        return
    width = max(len(p.where) for p in problems)
    lines = "\n".join(f"  {p.where:<{width}}  {p.what}" for p in problems)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise ConfigError(f"{count} in the experiment; nothing was started\n{lines}")


def nearest(word: str, known: Sequence[str]) -> str:
    """`did you mean x?`, or the whole list when nothing is near. A key is also near by its last part."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:
        last = word.rsplit(".", 1)[-1]
        close = [key for key in known if key.rsplit(".", 1)[-1] == last][:1]
    if close:
        return f"did you mean {close[0]}?"
    return f"choose one of {', '.join(known)}" if len(known) <= 12 else "see --cfg job for all keys"


def _nearest_key(key: str, known: Sequence[str]) -> str:
    """Looks in the key's own section first, where that exists."""
    section = key.rpartition(".")[0]
    siblings = [k for k in known if k.rpartition(".")[0] == section] if section else []
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.8)
    if siblings and not close:
        return f"{section} has {', '.join(k.rpartition('.')[2] for k in siblings)}"
    return nearest(key, close or known)


def composed(overrides: Sequence[str], config_dir: str | None = None, config_name: str | None = None) -> DictConfig:
    """The config that these overrides compose. Raises HydraException."""
    GlobalHydra.instance().clear()
    # Hydra looks for a primary config in its first folder only, so a folder of the user's comes first.
    first = str(Path(config_dir).absolute()) if config_dir else str(conf_folder())
    search = [f"hydra.searchpath=[file://{conf_folder()}]"] if config_dir else []
    with initialize_config_dir(version_base="1.3", config_dir=first, job_name="clawexp"):
        return compose(config_name or "config", overrides=[*overrides, *search])


def check(overrides: Sequence[str], config_dir: str | None = None, config_name: str | None = None) -> None:
    """Refuse an impossible experiment, listing everything that is wrong with it. Raises ConfigError."""
    parsed, problems = _parse(overrides)
    options = groups(conf_folder())
    chosen = [o for o in parsed if o.key_or_group in options]
    valued = [o for o in parsed if o.key_or_group not in options and not o.key_or_group.startswith("hydra")]
    bad_options = [p for o in chosen for p in _unknown_options(o, options[o.key_or_group])]
    usable = [o for o in chosen if not list(_unknown_options(o, options[o.key_or_group]))]
    try:
        config = composed([_first_point(o) for o in usable], config_dir, config_name)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        refuse([*problems, *bad_options, Problem(where="config", what=str(error).strip())])
        raise AssertionError from error
    problems += bad_options + _misplaced(valued, config, list(options))
    for point in _points(valued, config):
        problems += [p for p in _wrong(point, valued) if p not in problems]
    refuse(problems)


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, without Hydra's own section."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return {key: value for key, value in plain.items() if key != "hydra"}


def build(config: DictConfig) -> Experiment:
    """The experiment that a composed config describes. Raises ConfigError."""
    refuse([Problem(where=where, what=what) for where, what in problems_of(_plain(config))])
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        text = "; ".join(e["msg"] for e in cause.errors()) if isinstance(cause, ValidationError) else str(error)
        raise ConfigError(f"the experiment cannot be built: {text}") from error


def _parse(overrides: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    parser = OverridesParser.create()
    parsed: list[Override] = []
    problems: list[Problem] = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException:
            problems.append(Problem(where=text, what="not an override; write key=value, and quote brackets and commas"))
    return parsed, problems


def _choices(override: Override) -> list[Any]:
    """The values that a sweep over this override takes; one where it is no sweep."""
    if override.is_delete():
        return []
    if override.is_sweep_override():
        return [override.value() if not override.is_sweep_override() else v for v in override.sweep_iterator()]
    return [override.value()]


def _names(choice: Any) -> list[str]:
    return [str(name) for name in choice] if isinstance(choice, list) else [str(choice)]


def _unknown_options(override: Override, known: list[str]) -> Iterator[Problem]:
    for choice in _choices(override):
        text = choice.strip("[]").split(",") if isinstance(choice, str) else _names(choice)
        for name in (n.strip() for n in text):
            optional = override.key_or_group in OPTIONAL_GROUPS and name in ("null", "None")
            if name not in known and not optional:
                what = f"no such {override.key_or_group}; {nearest(name, known)}"
                yield Problem(where=f"{override.key_or_group}={name}", what=what)


def _first_point(override: Override) -> str:
    """This override, narrowed to the first value of its sweep."""
    if not override.is_sweep_override():
        return str(override.input_line)
    return f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"


def sweep_points(overrides: Sequence[str]) -> list[list[str]]:
    """Every point of a sweep as plain overrides; one where nothing is swept. `[["a=1", "b=2"], ["a=1", "b=3"]]`"""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parsed
    ]
    return [list(point) for point in itertools.product(*choices)]


def _misplaced(valued: Sequence[Override], config: DictConfig, group_names: list[str]) -> list[Problem]:
    known = [*key_paths(_plain(config)), *group_names]
    problems = []
    for override in valued:
        key = override.key_or_group
        if key not in known and not override.is_force_add():
            problems.append(Problem(where=str(override.input_line), what=f"no such key; {_nearest_key(key, known)}"))
        elif isinstance(OmegaConf.select(config, key), DictConfig) and not override.is_delete():
            what = f"{key} is a section, not a value; set one of its keys, such as {key}." + next(
                iter(OmegaConf.select(config, key)), "..."
            )
            problems.append(Problem(where=str(override.input_line), what=what))
    return problems


def _points(valued: Sequence[Override], config: DictConfig) -> Iterator[dict[str, Any]]:
    """The config with every override's first value, then once for each further value of a sweep."""
    known = set(key_paths(_plain(config)))
    settable = [o for o in valued if not o.is_delete() and (o.key_or_group in known)]
    base = OmegaConf.create(_plain(config))
    for override in settable:
        OmegaConf.update(base, override.key_or_group, _choices(override)[0], merge=False)
    yield _plain(base)
    for override in settable:
        for value in _choices(override)[1:]:
            point = base.copy()
            OmegaConf.update(point, override.key_or_group, value, merge=False)
            yield _plain(point)


def _wrong(point: Mapping[str, Any], valued: Sequence[Override]) -> Iterator[Problem]:
    written = {o.key_or_group: str(o.input_line) for o in valued}
    for where, what in problems_of(point):
        yield Problem(where=written.get(where, where), what=what)


def _plain(config: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=False)  # type: ignore[return-value]  # a DictConfig gives a dict
