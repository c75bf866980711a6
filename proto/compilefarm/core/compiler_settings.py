"""Classes of compiler settings in requests: allowed with a type, refused, or without effect.

Every setting of both ends of the supported torch range is in one of the three classes, by its name; a test says so.
What is in none is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.graph_pb2 import NamedValue
from compilefarm.v1.job_pb2 import Options

_KINDS = frozenset({"boolean", "integer", "real", "text"})
# Whether the process that calls a program records it as CUDA graphs.
CUDA_GRAPHS = "triton.cudagraphs"


def settings_of_options(user_options: Mapping[str, object]) -> dict[str, object]:
    """Returns options of torch.compile by the names of settings; torch takes dashes in them, too."""
    # torch/__init__.py: _TorchCompileInductorWrapper.apply_options
    return {name.replace("-", "_"): value for name, value in user_options.items()}


def is_of_cuda_graphs(name: str) -> bool:
    """Returns whether a setting of Inductor has an effect with CUDA graphs only."""
    return name.startswith(("cudagraph_", "triton.cudagraph"))


# torch/_inductor/codegen/cpp_gemm_template.py packs weights while it lowers a graph.
_TUNED_ON_WEIGHTS = ("max_autotune", "max_autotune_gemm")


def asks_for_cuda_graphs(options: Options) -> bool:
    """Returns whether a program is to be recorded as CUDA graphs by the process that calls it."""
    return any(setting.name == CUDA_GRAPHS and setting.value.boolean for setting in options.inductor)


def find_obstacle_to_freezing(options: Options) -> str | None:
    """Returns the setting with which no farm freezes weights: kernels would hold parts of them, or be recorded."""
    asked = (entry.name for entry in options.inductor if entry.name in _TUNED_ON_WEIGHTS and entry.value.boolean)
    return CUDA_GRAPHS if asks_for_cuda_graphs(options) else next(asked, None)


class SettingType(Protocol):
    """The values that a setting may have. No type admits a text that is not in its own list, since texts of settings
    reach generated source and command lines.
    """

    def admits(self, value: object) -> bool:
        """Returns whether a setting of this type may have the value."""

    def describe(self) -> str:
        """Describes the admitted values, for a message: "an integer from 0 to 8"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boolean:
    """True or False."""

    def admits(self, value: object) -> bool:
        return isinstance(value, bool)

    def describe(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """A whole number between two bounds, both included."""

    low: int
    high: int

    def admits(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def describe(self) -> str:
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A number between two finite bounds, both included."""

    low: float
    high: float

    def admits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        # NaN is in no range.
        return self.low <= value <= self.high

    def describe(self) -> str:
        return f"a number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One of a few texts."""

    words: frozenset[str]

    def admits(self, value: object) -> bool:
        return isinstance(value, str) and value in self.words

    def describe(self) -> str:
        return f"one of {', '.join(sorted(self.words))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Several of a few texts, each once, with a comma between them."""

    words: frozenset[str]

    def admits(self, value: object) -> bool:
        if not isinstance(value, str):
            return False
        given = value.split(",")
        return len(set(given)) == len(given) and self.words.issuperset(given)

    def describe(self) -> str:
        return f"some of {','.join(sorted(self.words))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional:
    """None, or what another type admits."""

    type: SettingType

    def admits(self, value: object) -> bool:
        return value is None or self.type.admits(value)

    def describe(self) -> str:
        return f"none or {self.type.describe()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSettings:
    """The settings of one configuration module of torch, of all supported releases.

    Attributes:
        allowed: what a request may set, and to what.
        refused: why a request may not set it; by name, or by family ("aot_inductor." is all that begins so).
        without_effect: why a setting cannot change a result; it is left out of requests. By name, or by family.
    """

    allowed: Mapping[str, SettingType]
    refused: Mapping[str, str]
    without_effect: Mapping[str, str]

    def find_refusal(self, name: str) -> str | None:
        """Returns the reason for which a request must not set a setting; None if it may."""
        if name in self.allowed:
            return None
        return _find_reason(self.refused, name) or _find_reason(self.without_effect, name) or "it is not known"

    def has_no_effect(self, name: str) -> bool:
        """Returns whether a setting cannot change a result."""
        return name not in self.allowed and _find_reason(self.without_effect, name) is not None

    def value_of(self, setting: NamedValue) -> object:
        """Returns the value that a request sets.

        Raises:
            InvalidRequest: a request may not set it, or not to this.
        """
        reason = self.find_refusal(setting.name)
        if reason is not None:
            raise InvalidRequest(f"{setting.name!r:.100} is no setting that a request may make: {reason}")
        wanted = self.allowed[setting.name]
        kind = setting.value.WhichOneof("kind")
        value = None if kind == "none" else getattr(setting.value, kind) if kind in _KINDS else setting.value
        if not wanted.admits(value):
            raise InvalidRequest(f"the setting {setting.name} has to be {wanted.describe()}")
        return value

    def is_classified(self, name: str) -> bool:
        """Returns whether a setting is in one of the classes."""
        return self.find_refusal(name) != "it is not known"


def _find_reason(reasons: Mapping[str, str], name: str) -> str | None:
    family = name.partition(".")[0] + "."
    return reasons.get(name) or reasons.get(family)


def names(text: str) -> list[str]:
    """The names in a text, with blanks or line ends between them."""
    return text.split()


def by_reason(reasons: Mapping[str, str]) -> dict[str, str]:
    """The reason by name, from names by reason."""
    return {name: reason for reason, text in reasons.items() for name in names(text)}
