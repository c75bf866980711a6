"""What classes and functions say of themselves, as text: their names, annotations and documentation."""

from __future__ import annotations

import re
from typing import Any

from compilefarm.reuse.description_texts import name_of

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class AnnotationTexts:
    """Annotations as text. It remembers them: one is for one moment."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def said_of_itself(self, thing: Any) -> list[str]:
        """What a class or function says of itself, which releases before 2.12 read without a guard."""
        is_class = isinstance(thing, type)
        said = [thing.__name__]
        if own := vars(thing).get("__annotations__") if is_class else thing.__annotations__:
            # Most are text, or known.
            known = self._known
            for name, value in own.items():
                if type(value) is str:
                    said.append(f"{name}:{value}")
                elif (text := known.get(id(value))) is not None:
                    said.append(f"{name}:{text[1]}")
                else:
                    said.append(f"{name}:{value if isinstance(value, str) else self._annotation(value)}")
        documentation = thing.__doc__
        if is_class or documentation not in thing.__code__.co_consts[:1]:
            said.append(str(documentation))
        return said

    def _annotation(self, value: Any) -> str:
        """Another annotation as text. The same few stand at most places, and typing takes a while to name them."""
        text = name_of(value) if isinstance(value, type) else str(value)
        text = _ADDRESS.sub("", text) if " at 0x" in text else text
        self._known[id(value)] = value, text
        return text
