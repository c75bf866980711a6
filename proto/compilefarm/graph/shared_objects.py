"""What shared objects may register with torch's dispatcher, by the texts that stand in them.

Who registers a kernel names the namespace of its operator, or the operator in full ("aten", "aten::relu"). Either
stands somewhere in the library: as a text, or in an instruction that makes one. Text that is put together while the
library runs is not found.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple

# ELF of 64 bits (elf.h: Elf64_Ehdr, Elf64_Shdr).
_SECTION = struct.Struct("<IIQ8xQQI20x")
_CONTENT, _DYNAMIC_SYMBOLS = 1, 11
_IS_LOADED = 2
# Instructions of other processors hold texts in pieces.
_X86_64 = 62
# Code of GPUs, and what the unwinder reads: large, and no arguments of what runs here.
_OTHERS_SECTIONS = frozenset({b".nv_fatbin", b".eh_frame", b".eh_frame_hdr", b".gcc_except_table"})
# It takes longer to read more than that than to ask the dispatcher about all operators.
_MOST_BYTES = 2**24
# As many bytes of a text as an instruction holds at least.
_PIECE = 4
# As many as what loads constants; compilers put longer texts together of such pieces, which stand beside others. That
# others complete one to the name of another operator is taken for impossible.
_LARGER_PIECE = 8
_IN_A_WORD, _ENDS = re.compile(rb"\w{4}"), re.compile(rb"\W")
# A text of its own, or one that a text quotes.
_BEFORE, _NAME = (b"\0", b'"'), re.compile(rb'::(\w+)[\0.("]')


class _Section(NamedTuple):
    """An entry of the table of sections, as far as it is looked at."""

    name_at: int
    kind: int
    flags: int
    offset: int
    size_bytes: int
    link: int


def names_of_symbols(library: Path) -> bytes:
    """Names of all dynamic symbols of a library, as they lie there.

    Raises:
        OSError, struct.error: it was removed, or is none.
        LookupError: it has no table of sections. What loads libraries needs none, and tools take it away.
    """
    with library.open("rb", buffering=0) as file:
        sections = _sections(file)
        wanted = [sections[each.link] for each in sections if each.kind == _DYNAMIC_SYMBOLS]
        if not wanted:
            raise LookupError(f"{library} has no table of dynamic symbols")
        return b"".join(_content(file, each) for each in wanted)


def operators_named(library: Path, *, namespaces: Iterable[str], operators: Container[str]) -> set[str]:
    """How the names begin of all operators that a library can register something for ("aten::relu", "mkldnn::").

    Args:
        library: a shared object.
        namespaces: those that are asked for.
        operators: names in them that there are, without overloads ("aten::relu").

    Raises:
        OSError, struct.error: it was removed, or is none.
        LookupError: it has no table of sections.
    """
    with library.open("rb", buffering=0) as file:
        header = file.read(64)
        sections = _sections(file)
        # The last two numbers of the header: which section has the names of all.
        names = _content(file, sections[struct.unpack_from("<H", header, 62)[0]])
        wanted = [each for each in sections if each.kind == _CONTENT and each.flags & _IS_LOADED]
        wanted = [each for each in wanted if names[each.name_at :].partition(b"\0")[0] not in _OTHERS_SECTIONS]
        is_known = struct.unpack_from("<H", header, 18) == (_X86_64,)
        if not is_known or sum(each.size_bytes for each in wanted) > _MOST_BYTES:
            return {f"{namespace}::" for namespace in namespaces}
        contents = [b"\0%b\0" % _content(file, each) for each in wanted]
    found = (_named_in(content, namespace.encode()) for content in contents for namespace in namespaces)
    return {name if name in operators else _beginning_of(name) for each in found for name in each}


def _beginning_of(name: str) -> str:
    return name[: max(_LARGER_PIECE, name.index("::") + 2)]


def _named_in(content: bytes, namespace: bytes) -> Iterator[str]:
    piece, place = namespace[:_PIECE], -1
    while (place := content.find(piece, place + 1)) >= 0:
        end = place + len(piece)
        is_in_a_word = _IN_A_WORD.match(content, max(place - 4, 0), place) and _IN_A_WORD.match(content, end)
        if is_in_a_word and not (content.startswith(namespace, place) and _ENDS.match(content, place + len(namespace))):
            # Neither the end of a text, which linkers have another text share, nor an instruction, whose code stands
            # before what it holds.
            continue
        is_text = content[place - 1 : place] in _BEFORE and content.startswith(namespace, place)
        named = _NAME.match(content, place + len(namespace)) if is_text else None
        yield f"{namespace.decode()}::{named[1].decode() if named is not None else ''}"


def _sections(file: FileIO) -> list[_Section]:
    file.seek(0)
    header = file.read(64)
    offset, entry_bytes, count = *struct.unpack_from("<Q", header, 40), *struct.unpack_from("<HH", header, 58)
    file.seek(offset)
    table = file.read(entry_bytes * count)
    return [_Section(*each) for each in _SECTION.iter_unpack(table)]


def _content(file: FileIO, section: _Section) -> bytes:
    file.seek(section.offset)
    return file.read(section.size_bytes)
