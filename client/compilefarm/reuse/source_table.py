"""Sources as a table of data, in which a source's base stands before it, and back."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compilefarm.core.dynamo_packages import Field, SourceRecord
from compilefarm.reuse.code_objects import constant_of, value_of
from compilefarm.reuse.refusals import Differs, Unsayable
from compilefarm.torch_internals.dynamo_sources import Source, fields_of, kind_of, maker_of

# torch evaluates sources as Python expressions, so that a name has to be a name, or the number of a part of a model.
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*|\.?\d+")
# Sources that lead to the same place in another process. Others lead to temporary values, to what the hash seed orders,
# or to objects that exist once.
_LASTING = frozenset(
    {
        "AttrSource", "CallFunctionNoArgsSource", "CellContentsSource", "ClosureSource", "CodeSource",
        "ConstDictKeySource", "ContextVarGetSource", "ConvertIntSource", "DataclassFieldsSource",
        "DefaultsSource", "DictGetItemSource", "DictSubclassGetItemSource", "DynamicScalarSource",
        "FloatTensorSource", "GenericAttrSource", "GetItemSource", "GlobalSource", "GlobalStateSource",
        "GradSource", "ImportSource", "ListGetItemSource", "LocalCellSource", "LocalSource", "NNModuleSource",
        "NamedTupleFieldsSource", "NegateSource", "NonSerializableSetGetItemSource", "NumpyTensorSource",
        "ParamBufferSource", "ShapeEnvSource", "SkipGuardSource", "TensorPropertySource",
        "TupleIteratorGetItemSource", "TypeDictSource", "TypeMROSource", "TypeSource",
        "UnspecializedBuiltinNNModuleSource", "UnspecializedNNModuleSource", "UnspecializedParamBufferSource",
        "WeakRefCallSource",
    }
)  # fmt: skip
_ELSEWHERE = "which is not at the same place elsewhere"
_WHY = {"OptimizerSource": "an optimizer, whose tensors a trace takes for those of its process"}
# Keys of a dictionary, which describe it: those of hooks are numbers of one process.
KEY = "ConstDictKeySource"
# Members of a set. Torch counts them as its process has them; in a table they are counted by their descriptions.
_MEMBER = "NonSerializableSetGetItemSource"
_NAMES = frozenset({"local_name", "global_name", "member", "module_name", "freevar_name"})


class SourceTable:
    """Collects sources, each once.

    Args:
        ranks_of: returns for each member of the set that a source leads to which one it is, by their descriptions.
    """

    def __init__(self, ranks_of: Callable[[Source], Sequence[int]]) -> None:
        # Each member of a set has a source.
        self._ranks_of = functools.cache(ranks_of)
        self._places: dict[Source, int] = {}
        self._records: list[SourceRecord] = []

    @property
    def sources(self) -> tuple[Source, ...]:
        """All sources, a base before what stands on it."""
        return tuple(self._places)

    @property
    def records(self) -> tuple[SourceRecord, ...]:
        """The same as data."""
        return tuple(self._records)

    def place_of(self, source: Source) -> int:
        """Returns the place of a source in the table, which it is put into.

        Raises:
            Unsayable: it holds what is no constant.
        """
        known = self._places.get(source)
        if known is not None:
            return known
        if kind_of(source) not in _LASTING:
            raise Unsayable(f"{source.name}, {_WHY.get(kind_of(source), _ELSEWHERE)} ({kind_of(source)})")
        values = fields_of(source)
        if kind_of(source) == _MEMBER:
            values["index"] = self._ranks_of(values["base"])[values["index"]]
        record = SourceRecord(kind=kind_of(source), fields=self.fields(values))
        place = self._places[source] = len(self._records)
        self._records.append(record)
        return place

    def fields(self, values: Mapping[str, Any]) -> tuple[Field, ...]:
        """Returns arguments as data. Raises as `place_of`."""
        return tuple(self._field(name, value) for name, value in values.items())

    def _field(self, name: str, value: Any) -> Field:
        if isinstance(value, Source):
            return Field(name=name, source=self.place_of(value))
        return Field(name=name, value=constant_of(value))


def sources_of(
    records: Sequence[SourceRecord], *, names: Mapping[str, str], ranks_of: Callable[[Source], Sequence[int]]
) -> list[Source]:
    """Makes the sources of a table.

    Args:
        records: the table.
        names: what names of globals became in this process.
        ranks_of: as for SourceTable, in this process.

    Raises:
        Differs: this torch has other sources, or a set has fewer members.
    """
    sources: list[Source] = []
    ranks_of = functools.cache(ranks_of)
    makers: dict[str, Callable[..., Source]] = {}
    for kind, fields in records:
        values: dict[str, Any] = {}
        # As values_of, which takes a call for each of some thousands.
        for name, value, source in fields:
            if source is not None:
                values[name] = sources[source]
            elif name in _NAMES:
                value = value_of(value)
                values[name] = value = names.get(value, value) if name == "global_name" else value
                _require_name(value)
            else:
                values[name] = value_of(value)
        make = makers.get(kind)
        if make is None:
            make = makers[kind] = _maker_of(kind)
        if kind == _MEMBER:
            values["index"] = _place_in_set(values, ranks_of)
        try:
            sources.append(make(**values))
        except TypeError as error:
            raise Differs(f"torch has another {kind}: {error}") from error
    return sources


def _maker_of(kind: str) -> Callable[..., Source]:
    if kind not in _LASTING:
        raise Differs(f"{kind} is no source that is recorded")
    try:
        return maker_of(kind)
    except ValueError as error:
        raise Differs(str(error)) from error


def _place_in_set(values: Mapping[str, Any], ranks_of: Callable[[Source], Sequence[int]]) -> int:
    base, rank = values.get("base"), values.get("index")
    ranks = ranks_of(base) if isinstance(base, Source) else ()
    if rank not in ranks:
        raise Differs(f"{getattr(base, 'name', base)} has no such member")
    return ranks.index(rank)


def values_of(fields: Sequence[Field], *, sources: Sequence[Source]) -> dict[str, Any]:
    """Returns arguments as values."""
    # Most are a source, or a text that names what stands on one.
    return {
        name: sources[source] if source is not None else value if type(value) is str else value_of(value)
        for name, value, source in fields
    }


def _require_name(text: Any) -> None:
    if text and not _is_name(str(text)):
        raise Differs(f"{text!r} is no name")


# Layers of one class name what they hold alike.
@functools.lru_cache(maxsize=10_000)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None
