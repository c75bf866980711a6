"""Canaries of torch_internals/dynamo_sources.py."""

from __future__ import annotations

import colorsys

import pytest
import torch
from torch._dynamo.source import (
    AttrSource,
    DefaultsSource,
    DictGetItemSource,
    GetItemSource,
    GlobalSource,
    LocalSource,
    NonSerializableSetGetItemSource,
    TensorProperty,
    TypeSource,
    UnspecializedBuiltinNNModuleSource,
    UnspecializedNNModuleSource,
    UnspecializedParamBufferSource,
)
from torch._dynamo.source import TensorPropertySource as PropertySource

from compilefarm.torch_internals.dynamo_sources import (
    TAKES_MEMBER,
    Scope,
    Source,
    fields_of,
    global_of,
    kind_of,
    maker_of,
    modules_named_by,
)

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
    again = maker_of(kind_of(source))(**fields_of(source))
    assert (again, again.name) == (source, source.name)


@pytest.mark.parametrize("kind", ["NoSource", "Enum"])
def test_what_torch_does_not_have_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="torch has"):
        maker_of(kind)


def test_a_source_with_other_fields_is_refused() -> None:
    with pytest.raises(TypeError, match="nothing"):
        maker_of("AttrSource")(nothing=1)


def by_default(x: int = 3, *, by: int = 4) -> int:
    return x * by


@pytest.mark.parametrize(
    "source",
    [
        GetItemSource(LOCAL, 3),
        AttrSource(AttrSource(GetItemSource(LOCAL, 0), "weight"), "shape"),
        PropertySource(AttrSource(GetItemSource(LOCAL, 0), "bias"), TensorProperty.SIZE, 0),
        DictGetItemSource(AttrSource(GetItemSource(LOCAL, 0), "_parameters"), "bias"),
        UnspecializedParamBufferSource(UnspecializedNNModuleSource(GetItemSource(LOCAL, 0)), "weight"),
        AttrSource(UnspecializedBuiltinNNModuleSource(GetItemSource(LOCAL, 0)), "bias"),
        DefaultsSource(GlobalSource("by_default"), 0),
        DefaultsSource(GlobalSource("by_default"), "by", is_kw=True),
        TypeSource(GetItemSource(LOCAL, 0)),
        NonSerializableSetGetItemSource(GlobalSource("members"), 1),
    ],
    ids=lambda source: str(source.name),
)
def test_a_source_leads_where_torch_says(source: Source) -> None:
    variables, scope = {"x": [torch.nn.Linear(3, 2), 2, 3, 4]}, {"by_default": by_default, "members": {2, 3}}
    follow = Scope(variables, scope).follow
    helpers = {"___set_getitem": lambda members, number: list(members)[number]}
    expected = eval(source.name, {"L": variables, "G": scope}, helpers)
    assert follow(source) is expected or follow(source) == expected
    assert follow(source) is follow(source)


def _calls_another_module(x: torch.Tensor) -> torch.Tensor:
    return x * colorsys.hls_to_rgb(0.5, 0.5, 0.5)[1]


def test_names_that_are_made_for_modules_are_known() -> None:
    torch.compiler.reset()
    torch.compile(_calls_another_module, backend="eager")(torch.ones(2))
    # What stands there is torch's own name, and not one that this test has made up.
    name = next(name for name in globals() if name.startswith("__import") and name.endswith("colorsys"))
    assert list(modules_named_by([GlobalSource(name), GlobalSource("torch"), LOCAL], globals())) == [(name, "colorsys")]


def test_sources_are_told_by_the_global_that_they_begin_with() -> None:
    assert global_of(AttrSource(GetItemSource(GlobalSource("settings"), 3), "weight")) == "settings"
    assert global_of(AttrSource(LOCAL, "weight")) is None


_MEMBERS = {torch.sin, torch.cos}


def _takes_members(x: torch.Tensor) -> tuple[torch.Tensor, list[object]]:
    return x + 1, list(_MEMBERS)


def test_code_that_takes_members_of_a_set_names_what_takes_them() -> None:
    torch.compiler.reset()
    names = set[str]()
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda _, made: names.update(made.co_names))
    try:
        torch.compile(_takes_members, backend="eager")(torch.ones(2))
    finally:
        handle.remove()
    assert TAKES_MEMBER in names
