"""Environments that the configuration file of `compilefarm serve` declares."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from compilefarm.core.pool import DEFAULT_ENVIRONMENT, DeclaredEnvironment

ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")


def environments(tables: Mapping[str, object]) -> tuple[DeclaredEnvironment, ...]:
    """Reads the tables [environments.NAME] of a file.

    Raises:
        argparse.ArgumentTypeError: one cannot be used; the message names it and says what to write.
    """
    return tuple(_environment(name, table) for name, table in tables.items())


def _environment(name: str, table: object) -> DeclaredEnvironment:
    if not ENVIRONMENT_NAME.fullmatch(name) or name == DEFAULT_ENVIRONMENT:
        raise argparse.ArgumentTypeError(f"an environment cannot be called {name!r}")
    if not isinstance(table, dict):
        raise argparse.ArgumentTypeError(f"write a table [environments.{name}]")
    try:
        values = {_field(key): _READERS[_field(key)](value) for key, value in table.items()}
    except KeyError as error:
        known = ", ".join(field.replace("_", "-") for field in _READERS)
        unknown = str(error.args[0]).replace("_", "-")
        raise argparse.ArgumentTypeError(f"environment {name} sets {unknown!r}; known are {known}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"environment {name}: {error}") from None
    return _checked(name, values)


def _checked(name: str, values: Mapping[str, Any]) -> DeclaredEnvironment:
    if "device" not in values or not (values.get("python") or values.get("image")):
        raise argparse.ArgumentTypeError(f"environment {name} has to say device, and python or image")
    declared = DeclaredEnvironment(name=name, **values)
    if declared.most_workers < max(declared.least_workers, 1):
        raise argparse.ArgumentTypeError(f"environment {name}: most-workers has to be at least 1, and least-workers")
    return declared


def _field(key: str) -> str:
    return key.replace("-", "_")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text in quotes")
    return value


def _device(value: object) -> Literal["cpu", "cuda"]:
    if value == "cpu" or value == "cuda":
        return value
    raise ValueError('device is "cpu" or "cuda"')


def _count(value: object) -> int:
    # In Python true is an int, in TOML it is not.
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0 on")
    return value


def _resources(value: object) -> Mapping[str, float]:
    if not isinstance(value, dict) or not all(type(each) in (int, float) and each > 0 for each in value.values()):
        raise ValueError("resources is a table of numbers above 0, such as {H200 = 1}")
    return value


_READERS: Mapping[str, Callable[[object], Any]] = {
    "python": _text,
    "image": _text,
    "device": _device,
    "resources": _resources,
    "least_workers": _count,
    "most_workers": _count,
    "idle_seconds": _count,
}
