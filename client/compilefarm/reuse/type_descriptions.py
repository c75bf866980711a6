"""Descriptions of what is no class, and stands for some: forms that typing has, and variables of types."""

from __future__ import annotations

import typing
from typing import Any

from compilefarm.reuse.describing import Describes
from compilefarm.reuse.names_in_code import value_at
from compilefarm.reuse.refusals import Unsayable


def describe_form_of_types(describer: Describes, form: Any) -> str:
    """Describes what is no class, and stands for some: typing.Optional, list[int], int | str.

    Raises:
        Unsayable: there is nothing by which another process could find its like.
    """
    origin = typing.get_origin(form)
    if origin is not None:
        described = describer.identity(origin)
        return f"form:{type(form).__qualname__}:{described}:{describer.constant(typing.get_args(form))}"
    name = str(form).removeprefix("typing.")
    if value_at("typing", name) is not form:
        raise Unsayable(f"{form!r}, which is not at its place")
    return f"typing:{name}"


def describe_variable_of_types(describer: Describes, variable: typing.TypeVar) -> str:
    """Describes a variable of types by its name and what it stands for."""
    told = [variable.__bound__, variable.__constraints__, variable.__covariant__, variable.__contravariant__]
    text = f"variable of types:{variable.__module__}.{variable.__name__}:{describer.all_members(told)}"
    return describer.alike.told_apart(text)
