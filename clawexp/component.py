"""The decorator of every configurable class: its fields are its config.

A component is a frozen, keyword-only, type-checked dataclass. `_target_` in an option file of `conf/` names it, and no
value has a default in code: defaults live in `conf/` alone. Component modules import without torch, so that a
configuration is checked in a second.
"""

from typing import TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def component(cls: type[T]) -> type[T]:
    """Make `cls` a component. Unknown fields and values of the wrong type raise `pydantic.ValidationError`."""
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return cast("type[T]", dataclass(cls, frozen=True, kw_only=True, config=config))
