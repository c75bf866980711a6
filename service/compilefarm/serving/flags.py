"""Fields of a configuration as flags of a command and as names in its TOML file.

A field says beside its default what it means and how its text is read (`flag`); the options of argparse, the validation
of a file and the reference follow from that.
"""

from __future__ import annotations

import argparse
import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

_KEY = "flag"


class UnusableFile(ValueError):
    """A configuration file cannot be used; the message names the file, the setting and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One setting of a command.

    Attributes:
        field: field of the configuration.
        name: the flag without its two dashes, and the name in a file.
        group: heading under which `--help` shows it.
        kind: "switch" (on or off), "list" (may be given several times), "number", "text", or "tables" (by name; in a
            file alone).
        metavar: unit or form of the value; empty for switches and choices.
        choices: the values that are allowed; empty if they are not a list.
        meaning: what it does, in a sentence.
        default_text: the default as people write it; empty if the sentence says all.
        read: makes the value of its text, or raises argparse.ArgumentTypeError.
        gateway: field of GatewayConfig that it sets; empty if none.
    """

    field: str
    name: str
    group: str
    kind: str
    metavar: str
    choices: tuple[str, ...]
    meaning: str
    default_text: str
    read: Callable[[Any], Any]
    gateway: str

    @property
    def help(self) -> str:
        """The sentence with the default."""
        return f"{self.meaning}; default: {self.default_text}" if self.default_text else self.meaning

    def value_in_file(self, given: object) -> Any:
        """The value that a file gives.

        Raises:
            ValueError: it is of another type, or cannot be used; the message says what to write instead.
        """
        if self.kind == "switch":
            return _of_type(given, bool, wanted="true or false")
        if self.kind == "list":
            texts = _of_type(given, list, wanted="a list of texts in quotes")
            return tuple(self._read(_of_type(text, str, wanted="a list of texts in quotes")) for text in texts)
        if self.kind == "tables":
            return self._read(_of_type(given, dict, wanted=f"tables, such as [{self.name}.gpu]"))
        if self.kind == "number":
            return self._read(str(_of_type(given, int, wanted="a whole number without quotes")))
        return self._read(_of_type(given, str, wanted="a text in quotes"))

    def _read(self, text: Any) -> Any:
        if self.choices and text not in self.choices:
            raise ValueError(f"use one of {', '.join(self.choices)}")
        try:
            return self.read(text)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None


def flag(
    meaning: str,
    *,
    group: str,
    name: str = "",
    kind: str = "text",
    metavar: str = "",
    choices: Sequence[str] = (),
    default_text: str | None = None,
    read: Callable[[Any], Any] = str,
    gateway: str = "",
) -> Mapping[str, object]:
    """The metadata of a field that is a flag.

    Args:
        meaning, group, kind, metavar, choices, read, gateway: as in `Flag`.
        name: as in `Flag`; that of the field with dashes unless it is given.
        default_text: as in `Flag`; the default itself unless it is given.
    """
    return {
        _KEY: {
            "meaning": meaning,
            "group": group,
            "name": name,
            "kind": kind,
            "metavar": metavar,
            "choices": tuple(choices),
            "default_text": default_text,
            "read": read,
            "gateway": gateway,
        }
    }


def flags_of(configuration: type) -> Iterator[Flag]:
    """The flags of a configuration, in the order of its fields."""
    for field in fields(configuration):
        given = dict(field.metadata[_KEY])
        given["name"] = given["name"] or field.name.replace("_", "-")
        if given["default_text"] is None:
            given["default_text"] = _text_of_default(field)
        yield Flag(field=field.name, **given)


def add_flags(parser: argparse.ArgumentParser, configuration: type) -> None:
    """Adds the flags of a configuration to a command. Those that are not given leave no trace in the namespace."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for each in (each for each in flags_of(configuration) if each.kind != "tables"):
        group = groups.get(each.group) or groups.setdefault(each.group, parser.add_argument_group(each.group))
        group.add_argument(
            f"--{each.name}",
            dest=each.field,
            default=argparse.SUPPRESS,
            help=each.help.replace("%", "%%"),
            **_form_of(each),
        )


def given_flags(configuration: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """The values that the command line gives, by field."""
    given = {each.field: getattr(arguments, each.field) for each in flags_of(configuration) if each.field in arguments}
    return {field: tuple(value) if isinstance(value, list) else value for field, value in given.items()}


def read_file(path: Path, configuration: type) -> dict[str, Any]:
    """The values that a TOML file gives, by field. Its names are those of the flags.

    Raises:
        UnusableFile: it cannot be read, or has a name that is not a flag, or a value that the flag does not take.
    """
    flags = {each.name: each for each in flags_of(configuration)}
    values = {}
    for name, given in _read_toml(path).items():
        if name not in flags:
            raise UnusableFile(f"{path} sets {name!r}, which is not a flag: {_nearest(name, flags)}")
        try:
            values[flags[name].field] = flags[name].value_in_file(given)
        except ValueError as error:
            raise UnusableFile(f"{path} sets {name} to {given!r:.200}: {error}") from None
    return values


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror}; check the path and who may read it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableFile(
            f'{path} is not TOML: {error}; write lines such as queue-limit = 100 or store = "/data"'
        ) from None


def _nearest(name: str, flags: Mapping[str, Flag]) -> str:
    near = difflib.get_close_matches(name.replace("_", "-"), flags, n=1)
    return f"did you mean {near[0]}?" if near else "`compilefarm serve --help` lists them; write them without --"


def _of_type(given: object, kind: type, *, wanted: str) -> Any:
    # In Python true is an int, in TOML it is not.
    if type(given) is not kind:
        raise ValueError(f"write {wanted}")
    return given


def _form_of(each: Flag) -> dict[str, Any]:
    if each.kind == "switch":
        return {"action": "store_true"}
    form: dict[str, Any] = {"type": each.read}
    if each.kind == "list":
        form["action"] = "append"
    return form | ({"choices": each.choices} if each.choices else {"metavar": each.metavar})


def _text_of_default(field: Field[Any]) -> str:
    default = field.default
    return "" if default in (MISSING, None, "", ()) or default is False else str(default)
