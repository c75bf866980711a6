"""Checks of code that a package brings, before a code object is made of it and before that can run.

The interpreter believes bytecode: a jump or a name beyond the end of a table reads elsewhere in memory. Who signed the
package is trusted not to do that on purpose; this notices what came out wrong, or is of another interpreter.
"""

from __future__ import annotations

import dis
from dataclasses import replace
from types import CodeType

from compilefarm.core.dynamo_packages import CodeRecord

MAX_CODE_BYTES = 4 * 1024 * 1024
MAX_STACK = 100_000
_MOST_ENTRIES = 200_000
_LONGEST_NAME = 4096
# Bytes of an instruction, without what follows it for the interpreter's own use.
_UNIT_BYTES = 2
# More than any instruction has behind it.
_MOST_FOLLOWING_BYTES = 64
# Without those that a debugger puts in the place of others.
_INSTRUCTIONS = frozenset(number for name, number in dis.opmap.items() if not name.startswith("INSTRUMENTED_"))


class InvalidPackage(Exception):
    """A package says what none can say; the message tells what."""


def check_code(record: CodeRecord) -> CodeType:
    """Returns the code object that a record describes, whose nested ones are checked.

    Raises:
        InvalidPackage: its sizes, names or instructions contradict each other.
    """
    _check_sizes(record)
    _check_names(record)
    # A code object shows others as if they were known.
    if not _INSTRUCTIONS.issuperset(record.code[::_UNIT_BYTES]):
        raise InvalidPackage("its code has what is no instruction of this interpreter")
    try:
        # Who asks a code object for its bytes has what follows instructions cleared, beyond the end as well.
        followed = make_code(replace(record, code=record.code + bytes(_MOST_FOLLOWING_BYTES)))
        _check_instructions(followed, size_bytes=len(record.code))
        code = make_code(record)
    except (IndexError, KeyError, OverflowError, SystemError, TypeError, ValueError) as error:
        raise InvalidPackage(f"the code of {record.qualname[:80]!r} contradicts itself: {error}") from None
    return code


def make_code(record: CodeRecord) -> CodeType:
    """The code object of a record that was checked."""
    consts = tuple(make_code(each) if isinstance(each, CodeRecord) else each for each in record.consts)
    return CodeType(
        record.argcount,
        record.posonlyargcount,
        record.kwonlyargcount,
        record.nlocals,
        record.stacksize,
        record.flags,
        record.code,
        consts,
        record.names,
        record.varnames,
        record.filename,
        record.name,
        record.qualname,
        record.firstlineno,
        record.linetable,
        record.exceptiontable,
        record.freevars,
        record.cellvars,
    )


def _check_sizes(record: CodeRecord) -> None:
    if not 0 < len(record.code) <= MAX_CODE_BYTES or len(record.code) % _UNIT_BYTES:
        raise InvalidPackage(f"code of {len(record.code)} bytes is none")
    if not 0 <= record.stacksize <= MAX_STACK:
        raise InvalidPackage(f"a stack of {record.stacksize} values is none")
    arguments = record.argcount + record.kwonlyargcount
    if (
        min(record.argcount, record.posonlyargcount, record.kwonlyargcount, record.firstlineno, record.flags) < 0
        or record.posonlyargcount > record.argcount
        or not arguments <= record.nlocals == len(record.varnames)
    ):
        raise InvalidPackage(f"the arguments of {record.qualname[:80]!r} do not fit its local variables")
    tables = (record.consts, record.names, record.varnames, record.freevars, record.cellvars)
    if max(map(len, tables)) > _MOST_ENTRIES:
        raise InvalidPackage("its code has more names or constants than any has")


def _check_names(record: CodeRecord) -> None:
    for name in (*record.names, *record.varnames, *record.freevars, *record.cellvars, record.name, record.qualname):
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise InvalidPackage(f"{name[:80]!r} is no name")


def _check_instructions(code: CodeType, *, size_bytes: int) -> None:
    # dis looks up each name, constant and variable that an instruction has.
    offsets, jumps = set[int](), set[int]()
    for instruction in dis.get_instructions(code):
        offsets.add(instruction.offset)
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            jumps.add(instruction.argval)
    if size_bytes not in offsets:
        raise InvalidPackage(f"{code.co_qualname[:80]!r} ends within what follows an instruction")
    if not jumps <= {each for each in offsets if each < size_bytes}:
        raise InvalidPackage(f"{code.co_qualname[:80]!r} jumps to where no instruction begins")
