"""The settings as arguments of `Farm`: its signature and its documentation follow from the table of settings."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from textwrap import fill
from typing import TypeVar

from compilefarm.client.config import SETTINGS
from compilefarm.client.settings import Setting

_Class = TypeVar("_Class", bound=type)
_ARGUMENTS = tuple(each for each in SETTINGS if each.is_argument and each.name != "address")


def taking_settings(farm: _Class) -> _Class:
    """Has `help()` and `inspect.signature()` show the settings that a class takes as `**settings`."""
    farm.__signature__ = Signature([*_parameters(farm)])  # type: ignore[attr-defined]  # read by inspect.signature
    farm.__doc__ = f"{farm.__doc__ or ''}\n    Settings:\n{''.join(map(_described, _ARGUMENTS))}    "
    return farm


def _parameters(farm: type) -> list[Parameter]:
    address, *others = signature(farm).parameters.values()
    settings = [Parameter(each.name, Parameter.KEYWORD_ONLY, default=None) for each in _ARGUMENTS]
    return [address, *settings, *(each for each in others if each.kind is Parameter.KEYWORD_ONLY)]


def _described(setting: Setting) -> str:
    source = f"{setting.variable}; " if setting.variable else ""
    text = f"{setting.name}: {setting.meaning} ({source}default: {setting.default!r})"
    return fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"
