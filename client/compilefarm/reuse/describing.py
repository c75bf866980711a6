"""The describer as the parts see it that describe one kind of object each, and what it remembers for them.

The parts are functions of any describer: one that held its own methods would be part of a circle, and would keep what
it has described, a model and its inputs, until somebody looks for garbage.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Protocol

from compilefarm.reuse.annotation_texts import AnnotationTexts
from compilefarm.reuse.code_objects import DescribedCodes
from compilefarm.reuse.names_in_code import Modules


class AlikeObjects:
    """Numbers the objects that are described alike. It remembers them: one is for one moment."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def told_apart(self, text: str) -> str:
        """A description with the number of the object among those that are described alike: `is` and isinstance tell
        them apart."""
        number = self._last[text] = self._last.get(text, -1) + 1
        return f"{text}#{number}"

    def last_numbers(self) -> Mapping[str, int]:
        """The last number of each description, as of now."""
        return dict(self._last)

    def are_several_since(self, before: Mapping[str, int]) -> bool:
        """Whether two objects that are described alike were numbered since `last_numbers` was asked for."""
        return any(last - before.get(text, -1) > 1 for text, last in self._last.items())


class Describes(Protocol):
    """What parts of descriptions ask of a describer.

    Attributes:
        alike: numbers objects that are described alike.
        annotations: annotations as text.
        codes: code of functions that were described.
        modules: those of this moment.
        orders: whether sets are told in the order that they have in this process.
        read_by_name: by their identities, mappings whose order says nothing, since they are read by name.
    """

    alike: AlikeObjects
    annotations: AnnotationTexts
    codes: DescribedCodes
    modules: Modules
    orders: bool
    read_by_name: Set[int]

    @property
    def of_calls(self) -> Describes:
        """Describes what is called while tracing, and goes through sets as it likes."""

    def constant(self, value: Any) -> str:
        """Describes a value that is compared by what it is equal to."""

    def identity(self, value: Any) -> str:
        """Describes a value that is compared by its identity."""

    def member(self, value: Any) -> str:
        """Describes what a class, a function or their like holds."""

    def all_members(self, values: list[Any]) -> str:
        """Describes all that something holds."""

    def named(self, value: Any) -> str:
        """Describes what a name leads to, or else of which class it is."""

    def of_class(self, kind: type) -> str:
        """Describes a class by all that its instances inherit."""

    def of_own_members(self, kind: type) -> str:
        """Describes a class by what it does not inherit."""

    def of_place(self, value: Any) -> str:
        """Describes the kind of object that stands somewhere: its class, and what is set on it."""

    def of_content_alone(self, value: Any) -> str:
        """Describes what no guard is on, whatever of it is read, with all that functions in it name."""

    def number_of(self, value: object) -> int:
        """The number of an object among those that were asked for."""
