"""Escapes texts of others for terminals and logs."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with all that is not printable escaped, but for ends of lines: control characters, which move a cursor or
    rename a window, and those of Unicode that turn the direction of writing or are not seen.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
