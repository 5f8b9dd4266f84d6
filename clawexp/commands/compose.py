"""Overrides -> a checked experiment. All problems of a command line are found at once, before torch is imported."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from clawexp.commands.arguments import conf_folder, groups
from clawexp.commands.overrides import choices, first_point, parse
from clawexp.commands.problem import Problem, nearest, nearest_key, refuse
from clawexp.commands.walk import key_paths, problems_of
from clawexp.compatibility import clashes
from clawexp.errors import ConfigError
from clawexp.run_folder import OTHER, RunFolder
from clawexp.spec import Experiment

UNCOMPOSED = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
"""What Hydra and OmegaConf raise where a config cannot be composed or resolved."""
ONE_VALUE = "several values; add -m to sweep over them, or write a list as key=[a,b]"


def composed(
    overrides: Sequence[str], config_dir: str | None = None, config_name: str | None = None, *, whole: bool = False
) -> DictConfig:
    """The config that these overrides compose, `whole` with Hydra's own section. Raises HydraException."""
    GlobalHydra.instance().clear()
    # Hydra looks for a primary config in its first folder only, so a folder of the user's comes first.
    first = str(Path(config_dir).absolute()) if config_dir else str(conf_folder())
    search = [f"hydra.searchpath=[file://{conf_folder()}]"] if config_dir else []
    with initialize_config_dir(version_base="1.3", config_dir=first, job_name="clawexp"):
        return compose(config_name or "config", overrides=[*overrides, *search], return_hydra_config=whole)


def with_sweep(overrides: Sequence[str], config_dir: str | None, config_name: str | None) -> tuple[list[str], bool]:
    """The overrides with those that a primary config sweeps over by itself, and whether it does so.

    What is wrong with such a config is found by `check`.
    """
    if config_name is None:
        return list(overrides), False
    try:
        own = composed([], config_dir, config_name, whole=True).hydra
    except UNCOMPOSED:
        return list(overrides), False
    given = {override.key_or_group for override in parse(overrides)[0]}
    swept = [f"{key}={values}" for key, values in (own.sweeper.params or {}).items() if key not in given]
    return [*swept, *overrides], own.mode == RunMode.MULTIRUN


def check(
    overrides: Sequence[str],
    config_dir: str | None = None,
    config_name: str | None = None,
    *,
    multirun: bool = False,
) -> None:
    """Refuse an impossible experiment, listing everything that is wrong with it. Raises ConfigError."""
    parsed, problems = parse(overrides)
    if not multirun:
        problems += [Problem(where=str(o.input_line), what=ONE_VALUE) for o in parsed if o.is_sweep_override()]
    options = groups(conf_folder())
    chosen = [o for o in parsed if o.key_or_group in options]
    valued = [o for o in parsed if o.key_or_group not in options and not o.key_or_group.startswith("hydra")]
    bad_options = [p for o in chosen for p in _unknown_options(o, options[o.key_or_group])]
    usable = [o for o in chosen if not list(_unknown_options(o, options[o.key_or_group]))]
    try:
        config = composed([first_point(o) for o in usable], config_dir, config_name)
    except UNCOMPOSED as error:
        refuse([*problems, *bad_options, _uncomposed(error)])
        raise AssertionError from error
    problems += bad_options + _misplaced(valued, config, list(options))
    for point in _points(valued, config):
        problems += [p for p in _wrong(point, valued) if p not in problems]
    refuse(problems)
    _refuse_unresolved(parsed, config_dir, config_name)


def _refuse_unresolved(parsed: Sequence[Override], config_dir: str | None, config_name: str | None) -> None:
    """What only composing all of it brings to light: Hydra's own section, interpolations, `+` for a known key."""
    try:
        config = composed([first_point(o) for o in parsed], config_dir, config_name)
        plain = resolved(config)
    except UNCOMPOSED as error:
        refuse([_uncomposed(error)])
        raise AssertionError from error
    refuse([Problem(where=where, what=what) for where, what in problems_of(plain)])
    build(config)


def _uncomposed(error: Exception) -> Problem:
    return Problem(where="config", what=str(error).partition("\nConfig search path")[0].strip().replace("\n", "\n    "))


def resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, without Hydra's own section."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return {key: value for key, value in plain.items() if key != "hydra"}


def build(config: DictConfig) -> Experiment:
    """The experiment that a composed config describes. Raises ConfigError."""
    refuse([Problem(where=where, what=what) for where, what in problems_of(_plain(config))])
    experiment = instantiated(config)
    refuse([Problem(where=clash.sides, what=clash.why) for clash in clashes(experiment)])
    return experiment


def rebuilt(folder: RunFolder, config: DictConfig | None = None) -> Experiment:
    """The experiment of a run; `config`: with what is changed of it. Raises ConfigError."""
    try:
        return build(config or OmegaConf.create(folder.config))
    except ConfigError as error:
        raise ConfigError(f"{error}\n  {folder.path} may be of another version of clawexp. {OTHER}") from error


def instantiated(config: DictConfig) -> Experiment:
    """The same, whether or not its parts go together."""
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        text = "; ".join(e["msg"] for e in cause.errors()) if isinstance(cause, ValidationError) else str(error)
        raise ConfigError(f"the experiment cannot be built: {text}") from error


def _names(choice: Any) -> list[str]:
    if isinstance(choice, list):
        return [str(name) for name in choice]
    return ["null" if choice is None else str(choice)]


def _unknown_options(override: Override, known: list[str]) -> Iterator[Problem]:
    for choice in choices(override):
        if choice in ([], ""):
            yield Problem(where=str(override.input_line), what=f"choose at least one of {', '.join(known)}")
            continue
        text = choice.strip("[]").split(",") if isinstance(choice, str) else _names(choice)
        for name in (n.strip() for n in text):
            if name not in known:
                what = f"no such {override.key_or_group}; {nearest(name, known)}"
                yield Problem(where=f"{override.key_or_group}={name}", what=what)


def _misplaced(valued: Sequence[Override], config: DictConfig, group_names: list[str]) -> list[Problem]:
    known = [*key_paths(_plain(config)), *group_names]
    problems = []
    for override in valued:
        key = override.key_or_group
        if key not in known and not override.is_force_add():
            problems.append(Problem(where=str(override.input_line), what=f"no such key; {nearest_key(key, known)}"))
        elif _section(config, override) and not override.is_delete():
            example = next((k for k in OmegaConf.select(config, key) if k != "_target_"), "...")
            what = f"{key} is a section, not a value; set one of its keys, such as {key}.{example}"
            problems.append(Problem(where=str(override.input_line), what=what))
    return problems


def _section(config: DictConfig, override: Override) -> bool:
    return isinstance(OmegaConf.select(config, override.key_or_group), DictConfig)


def _points(valued: Sequence[Override], config: DictConfig) -> Iterator[dict[str, Any]]:
    """The config with every override's first value, then once for each further value of a sweep."""
    known = set(key_paths(_plain(config)))
    settable = [o for o in valued if not o.is_delete() and o.key_or_group in known and not _section(config, o)]
    base = OmegaConf.create(_plain(config))
    for override in valued:
        if override.is_delete() and override.key_or_group in known:
            section, _, key = override.key_or_group.rpartition(".")
            del (OmegaConf.select(base, section) if section else base)[key]
    for override in settable:
        OmegaConf.update(base, override.key_or_group, choices(override)[0], merge=False)
    yield _plain(base)
    for override in settable:
        for value in choices(override)[1:]:
            point = base.copy()
            OmegaConf.update(point, override.key_or_group, value, merge=False)
            yield _plain(point)


def _wrong(point: Mapping[str, Any], valued: Sequence[Override]) -> Iterator[Problem]:
    written = {o.key_or_group: str(o.input_line) for o in valued}
    for where, what in problems_of(point):
        yield Problem(where=written.get(where, where), what=what)


def _plain(config: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=False)
    return plain
