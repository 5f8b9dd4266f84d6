"""A composed config against the components its `_target_`s name: every unknown key, missing key and wrong value."""

import dataclasses
import difflib
import importlib
import math
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from pydantic import TypeAdapter, ValidationError


def key_paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key of a config, sections too, as dotted paths. `["algo", "algo.lr", ...]`"""
    for key, value in node.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from key_paths(value, f"{path}.")


def problems_of(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it) for a section that names its component, and for all sections within it."""
    spec = _component(node.get("_target_"))
    if spec is None:
        yield f"{prefix}_target_", f"names no component (it is {node.get('_target_')!r})"
        return
    found = [*_fields(spec, node, prefix)]
    yield from found or _together(node, prefix)


def _component(target: object) -> type | None:
    """The component class of this dotted name; None where there is none."""
    module, _, name = str(target).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None


def _fields(spec: type, node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(spec, include_extras=True)
    known = [field.name for field in dataclasses.fields(spec)]
    for key in node:
        if key not in (*known, "_target_", "hydra"):
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known here: {', '.join(known)}"
            yield f"{prefix}{key}", f"no such key; {hint}"
    for name in known:
        if name not in node or node[name] == "???":
            yield f"{prefix}{name}", "has no value; every key stands in the option's file"
        else:
            yield from _value(f"{prefix}{name}", node[name], hints[name])


def _together(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """What the component itself says of values that are sound one by one."""
    if "${" in str(node):  # a section cannot be resolved alone
        return
    try:
        instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        said = [detail["msg"] for detail in cause.errors()] if isinstance(cause, ValidationError) else [str(error)]
        for message in said:
            yield prefix.rstrip(".") or "experiment", message.removeprefix("Value error, ")


def _value(path: str, value: Any, hint: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and ("_target_" in value or isinstance(hint, type)):
        yield from problems_of(value, f"{path}.")
    elif isinstance(value, Mapping) and _holds_components(value):
        for key, part in value.items():
            yield from _value(f"{path}.{key}", part, hint)
    elif isinstance(value, str) and value.startswith("${"):
        return
    else:
        yield from _fits(path, value, hint)


def _holds_components(value: Mapping[str, Any]) -> bool:
    """Whether these are components by name, or by two names."""
    parts = value.values()
    return bool(value) and all(
        isinstance(part, Mapping) and ("_target_" in part or _holds_components(part)) for part in parts
    )


def _fits(path: str, value: Any, hint: Any) -> Iterator[tuple[str, str]]:
    if value is None and NoneType in get_args(hint):  # of a protocol, too, for which pydantic has no adapter
        return
    if isinstance(value, float) and math.isinf(value):  # no component takes it; see `clawexp.component`
        yield path, f"should be a finite number (it is {value})"
        return
    try:
        TypeAdapter(hint, config=None).validate_python(value)
    except ValidationError as error:
        for detail in error.errors():
            where = ".".join([path, *(str(part) for part in detail["loc"] if not _is_noise(part))])
            said = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
            yield where, said if detail["type"] == "value_error" else f"{said} (it is {detail['input']!r})"


def _is_noise(part: int | str) -> bool:
    """Pydantic names union members and key roles in a location; a user wrote neither."""
    return isinstance(part, str) and ("[" in part or part in ("none", "int", "str", "float", "constrained-int"))
