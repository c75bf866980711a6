"""What one setting of a pod is: an argument of `Farm`, an environment variable, a default, and a sentence for people.

Fields of a configuration (`ClientConfig`, `Trust`) carry this beside their default, made by `setting`; arguments,
variables and documentation are read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

VARIABLE_PREFIX = "COMPILEFARM_"
_KEY = "setting"


class ConfigurationError(ValueError):
    """A setting of the client cannot be used; the message names it and the remedy."""


class Setting(NamedTuple):
    """One setting of a pod.

    Attributes:
        name: field of the configuration, and argument of `Farm`.
        variable: environment variable that is read where the argument is None; empty if there is none.
        default: value where neither says anything; MISSING if one of them has to.
        choices: the values that are allowed; empty if they are not a list.
        meaning: what it is, in a sentence.
        is_argument: whether `Farm` takes it.
        alternatives: a word that settings share which replace each other: an argument for one of them leaves the
            variables of all of them unread.
        read: makes the value of the text of the variable.
        convert: makes the value of the argument.
    """

    name: str
    variable: str
    default: object
    choices: tuple[str, ...]
    meaning: str
    is_argument: bool
    alternatives: str
    read: Callable[[str], object]
    convert: Callable[[Any], object]

    def value(self, given: object, environ: Mapping[str, str]) -> object:
        """The value: the argument, else what the variable says, else the default.

        Args:
            given: the argument, or None.
            environ: the environment.

        Raises:
            ConfigurationError: the variable has a text that cannot be used.
        """
        if given is not None:
            return self.convert(given)
        text = environ.get(self.variable)
        if text is None:
            return self.default
        try:
            return self.read(text)
        except _Unreadable as error:
            raise ConfigurationError(f"{self.variable} is {text!r}: use {error}") from None


class _Unreadable(ValueError):
    """The text of a variable cannot be read; the message says what to use instead."""


def setting(
    meaning: str,
    *,
    read: Callable[[str], object] = str,
    convert: Callable[[Any], object] = lambda given: given,
    choices: tuple[str, ...] = (),
    has_variable: bool = True,
    is_argument: bool = True,
    alternatives: str = "",
) -> Mapping[str, object]:
    """The metadata of a field that is a setting.

    Args:
        meaning: what it is, in a sentence.
        read: makes the value of the text of its variable.
        convert: makes the value of its argument.
        choices, is_argument, alternatives: as in `Setting`.
        has_variable: whether there is a variable for it, which is named after the field.
    """
    return {
        _KEY: {
            "meaning": meaning,
            "read": read,
            "convert": convert,
            "choices": choices,
            "has_variable": has_variable,
            "is_argument": is_argument,
            "alternatives": alternatives,
        }
    }


def settings_of(configuration: type) -> Iterator[Setting]:
    """The settings of a configuration, those of configurations within it included, in the order of the fields."""
    for field in fields(configuration):
        if _KEY not in field.metadata:
            yield from settings_of(field.default_factory)  # type: ignore[arg-type]  # a configuration within this one
            continue
        given = dict(field.metadata[_KEY])
        variable = variable_of(field.name) if given.pop("has_variable") else ""
        default = None if field.default is MISSING else field.default
        yield Setting(name=field.name, variable=variable, default=default, **given)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return VARIABLE_PREFIX + name.upper()


def read_values(configuration: type, given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of the settings of a configuration, by name.

    Args:
        configuration: its class.
        given: arguments by name; those that are None, or missing, come from the environment.
        environ: the environment.

    Raises:
        ConfigurationError: the text of a variable cannot be used.
    """
    settings = list(settings_of(configuration))
    replaced = {each.alternatives for each in settings if given.get(each.name) is not None} - {""}
    return {
        each.name: each.value(given.get(each.name), {} if each.alternatives in replaced else environ)
        for each in settings
    }


def read_number(text: str) -> float:
    """The number that a variable says."""
    try:
        return float(text)
    except ValueError:
        raise _Unreadable("a number") from None


def read_yes_or_no(text: str) -> bool:
    """What a variable says that is "yes" or "no"."""
    if text not in ("yes", "no"):
        raise _Unreadable("yes or no")
    return text == "yes"
