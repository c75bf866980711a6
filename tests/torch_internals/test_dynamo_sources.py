"""Canaries of torch_internals/dynamo_sources.py."""

from __future__ import annotations

import pytest
from torch._dynamo.source import AttrSource, DefaultsSource, GetItemSource, LocalSource, TensorProperty
from torch._dynamo.source import TensorPropertySource as PropertySource

from compilefarm.torch_internals.dynamo_sources import Scope, Source, build_source, fields_of, kind_of

LOCAL = LocalSource("x", is_input=True)


@pytest.mark.parametrize(
    "source",
    [
        LOCAL,
        AttrSource(LOCAL, "weight"),
        GetItemSource(LOCAL, 3),
        DefaultsSource(LOCAL, "by", is_kw=True),
        PropertySource(LOCAL, TensorProperty.SIZE, 1),
    ],
)
def test_a_source_is_taken_apart_and_put_together(source: Source) -> None:
    again = build_source(kind_of(source), fields_of(source))
    assert (again, again.name) == (source, source.name)


@pytest.mark.parametrize(("kind", "fields"), [("NoSource", {}), ("Enum", {}), ("AttrSource", {"nothing": 1})])
def test_what_torch_does_not_have_is_refused(kind: str, fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="torch has"):
        build_source(kind, fields)


def test_a_source_is_followed() -> None:
    scope = Scope({"x": [1, 2, 3, 4]}, {})
    assert scope.follow(GetItemSource(LOCAL, 3)) == 4
