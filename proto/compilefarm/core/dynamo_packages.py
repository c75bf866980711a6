"""What Dynamo found for one frame, as plain data: enough to install it in another process without tracing.

A *variant* is one compiled form of one code object. It holds no object of the process that made it: values are
constants, digests or names, so that it can travel, and be compared, as data. Records of which a variant has thousands
are named tuples, which are made in a third of the time.
"""

from __future__ import annotations

import dataclasses
import enum
from types import EllipsisType
from typing import NamedTuple, TypeAlias

# What a source, a guard or a code object may hold as a constant. Tuples and frozensets hold constants again.
Constant: TypeAlias = (
    "bool | int | float | complex | str | bytes | EllipsisType | tuple[Constant, ...] | frozenset[Constant]"
    "| CodeRecord | TorchConstant | ClassConstant | NamespaceConstant | None"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TorchConstant:
    """A constant of torch, as torch prints it.

    Attributes:
        kind: "dtype", "device", "layout", "memory_format" or "size".
        text: "torch.float32", "cuda:0", "torch.strided", "torch.Size([3, 4])".
    """

    kind: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassConstant:
    """A class that its name leads to, in a module that is imported, or a method of one as such (NamedTuple._make).

    Attributes:
        module: the module.
        qualified_name: within the module.
    """

    module: str
    qualified_name: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceConstant:
    """The global variables of a module that is imported, which code gives to functions that it makes.

    Attributes:
        module: the module.
    """

    module: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """A code object, field by field as `types.CodeType` names them (without `co_`)."""

    argcount: int
    posonlyargcount: int
    kwonlyargcount: int
    nlocals: int
    stacksize: int
    flags: int
    code: bytes
    consts: tuple[Constant, ...]
    names: tuple[str, ...]
    varnames: tuple[str, ...]
    filename: str
    name: str
    qualname: str
    firstlineno: int
    linetable: bytes
    exceptiontable: bytes
    freevars: tuple[str, ...]
    cellvars: tuple[str, ...]


class Field(NamedTuple):
    """One argument by name: of a source's or a guard's constructor.

    `source` is an index into `Variant.sources`, and then `value` is None.
    """

    name: str
    value: Constant = None
    source: int | None = None


class SourceRecord(NamedTuple):
    """How a guarded value is reached: a class of `torch._dynamo.source` by name, and its fields."""

    kind: str
    fields: tuple[Field, ...]


class GuardRecord(NamedTuple):
    """A guard: a method of Dynamo's `GuardBuilder` by name, on a source, and what it found there.

    `expected` describes the value that was guarded when the variant was made; a process may build the guard only
    after it has found the same description on its own value.
    """

    kind: str
    source: int
    arguments: tuple[Field, ...]
    expected: str


class TypeRecord(NamedTuple):
    """The class of the value that a source led to; of every source on the way to a guarded value."""

    source: int
    expected: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizeRecord:
    """Size and stride that a tensor's guard demands; None where any will do, or where an expression says it."""

    source: int
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AliasRecord:
    """A relation between inputs that AOTAutograd relied on: the same object, or which storages overlap."""

    kind: str
    first: tuple[int, ...]
    second: tuple[int, ...]


class GlobalKind(enum.Enum):
    """What stands behind a name that Dynamo put among a function's globals."""

    PROGRAM = "program"
    MODULE = "module"
    BUILTINS = "builtins"
    FUNCTION = "function"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GlobalRecord:
    """A name that the generated code expects among the function's globals.

    Attributes:
        name: as the generated code has it.
        kind: what it stands for.
        module: the module's name, of `MODULE`.
        program: the key of the program, of `PROGRAM`.
        code: the code of the rest of the function after a graph break, of `FUNCTION`.
    """

    name: str
    kind: GlobalKind
    module: str = ""
    program: str = ""
    code: CodeRecord | None = None


class DependencyKind(enum.Enum):
    """What a trace read without a guard."""

    FUNCTION = "function"
    FILE = "file"
    REFERENCE = "reference"
    MODEL = "model"
    VARIABLE = "variable"
    PACKAGE = "package"
    RESULT = "result"
    STATE = "state"


class DependencyRecord(NamedTuple):
    """Something that a trace read without a guard, and its description then.

    Attributes:
        kind: FUNCTION: code that was inlined; FILE: the source file of such code; REFERENCE: what a name in it leads
            to; MODEL: the structure of a model that is a variable of the frame; VARIABLE: an environment variable;
            PACKAGE: what the process has of an installed package; RESULT: what a function returns whose result is taken
            for a constant; STATE: a state of the process.
        module: where to look, of FUNCTION, FILE, REFERENCE and RESULT; the package.
        name: the qualified name, the dotted reference, the variable, the call, the state, what was asked of the
            package.
        expected: the description.
    """

    kind: DependencyKind
    module: str
    name: str
    expected: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Which code object was called, under which settings of `torch.compile`: variants of it are a union.

    Attributes:
        module: name of the module whose globals the function has.
        qualified_name: of the function.
        code_digest: of its code, without file names and line numbers.
        settings: backend, mode, options, dynamic, fullgraph, as text.
    """

    module: str
    qualified_name: str
    code_digest: str
    settings: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled form of a code object: what must hold, and what to run then.

    Attributes:
        code: Dynamo's generated code.
        globals: names that it expects.
        sources: a table; a source's base stands before it.
        types: the class at every source.
        guards: in the order in which Dynamo made them.
        shape_expressions: conditions on sizes, as Python expressions over sources.
        sizes: of tensors that are guarded.
        key_order: sources of dictionaries whose order was guarded.
        aliases: relations between inputs.
        dependencies: what was read without a guard.
    """

    code: CodeRecord
    globals: tuple[GlobalRecord, ...]
    sources: tuple[SourceRecord, ...]
    types: tuple[TypeRecord, ...]
    guards: tuple[GuardRecord, ...]
    shape_expressions: tuple[str, ...]
    sizes: tuple[SizeRecord, ...]
    key_order: tuple[int, ...]
    aliases: tuple[AliasRecord, ...]
    dependencies: tuple[DependencyRecord, ...]
