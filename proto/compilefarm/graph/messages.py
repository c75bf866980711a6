"""Texts of a graph that nobody but a reader of errors needs, or that only have to differ: they are numbered.

They would reach sources that Inductor writes, C++ among them, without being quoted, and some hold names that differ
from one capture to the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What takes a message, by its name without namespace and overload, and where: position and keyword.
_MESSAGES: Mapping[str, tuple[int, str]] = {
    "_assert_async": (1, "assert_msg"),
    "_assert_scalar": (1, "assert_msg"),
    "_functional_assert_async": (1, "assert_msg"),
    "_functional_assert_scalar": (1, "assert_msg"),
    "_check": (1, "message"),
    # torch/_functorch/eager_transforms.py: what saving a tensor with hooks within torch.func.grad would say.
    "_saved_tensors_hooks_disable": (0, "message"),
}
# The number by which calls of torch.compiler.nested_compile_region find what they share.
_IDENTIFIERS: Mapping[str, tuple[int, str]] = {"invoke_subgraph": (1, "identifier")}
_ASSERTION = re.compile(r"compilefarm assertion ([0-9]{1,6})")
# A name: functions of the sources that Inductor writes are called by it.
_REGION = re.compile(r"compilefarm_region_[0-9]{1,6}")


@dataclass(slots=True)
class Messages:
    """The texts of one job that stay in the pod.

    Attributes:
        texts: of the messages, by number.
    """

    texts: list[str] = field(default_factory=list)
    _regions: dict[str, int] = field(default_factory=dict)

    def take(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        """The arguments of a call, with a number in the place of a text that is not sent."""
        place = find_place(name)
        if place is None:
            return args, kwargs
        position, keyword = place
        if position < len(args) and isinstance(args[position], str):
            return (*args[:position], self._number(name, str(args[position])), *args[position + 1 :]), kwargs
        if isinstance(kwargs.get(keyword), str):
            return args, {**kwargs, keyword: self._number(name, str(kwargs[keyword]))}
        return args, kwargs

    def _number(self, name: str, text: str) -> str:
        if name in _IDENTIFIERS:
            return f"compilefarm_region_{self._regions.setdefault(text, len(self._regions))}"
        self.texts.append(text)
        return f"compilefarm assertion {len(self.texts) - 1}"


def find_place(name: str) -> tuple[int, str] | None:
    """Where a call takes a text that is numbered, as position and keyword; None if nowhere.

    Args:
        name: of what is called: "aten::_assert_async.msg", "torch._check", or that of a higher-order operator.
    """
    namespace, _, operator = name.rpartition("::")
    if namespace not in ("", "aten"):
        return _IDENTIFIERS.get(name)
    base = operator.partition(".")[0] if namespace else name.rpartition(".")[2]
    return _MESSAGES.get(base) or _IDENTIFIERS.get(name)


def is_numbered(text: object) -> bool:
    """Whether a text is one that `Messages.take` makes."""
    return isinstance(text, str) and any(pattern.fullmatch(text) for pattern in (_ASSERTION, _REGION))


def is_region(text: object) -> bool:
    """Whether it is a name that `Messages.take` makes for a region."""
    return isinstance(text, str) and _REGION.fullmatch(text) is not None


def restore(text: str, texts: Sequence[str]) -> str:
    """What an error of a program says, with the messages of the graph in the place of their numbers."""

    def message(found: re.Match[str]) -> str:
        number = int(found[1])
        return texts[number] if number < len(texts) else found[0]

    return _ASSERTION.sub(message, text)
