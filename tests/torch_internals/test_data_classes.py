"""Canaries of torch_internals/data_classes.py."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from compilefarm.torch_internals.data_classes import kind_of_field


@dataclasses.dataclass
class Settings:
    scale: float = 1.0
    shared: ClassVar[float] = 2.0
    given: dataclasses.InitVar[float] = 3.0


def test_fields_of_each_kind_are_told_apart() -> None:
    kinds = {name: kind_of_field(field) for name, field in Settings.__dataclass_fields__.items()}
    assert len(set(kinds.values())) == len(kinds) == 3
    assert kinds["scale"] == kind_of_field(dataclasses.fields(Settings)[0])
