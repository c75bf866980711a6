"""Checks generated source before it is compiled or run: defence in depth behind the decoder.

Text of a request must not become code. The decoder prevents that; should some text get through all the same, the
source holds what Inductor never writes: a name that Inductor's generators do not know, an import, a statement at the
level of the module, a quote that ends too early. Such a source is refused.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Sequence

import torch

from compilefarm.builder.generated_sources import (
    TUNING,
    imports_written,
    is_module_of_torch,
    paths_written,
    words_of_generators,
)
from compilefarm.core.compiler_settings import names
from compilefarm.torch_internals.generated_code import DEVICE_GUARD, IMPORTS_COMPUTED, MODULES_IMPORTED


class UnexpectedSource(Exception):
    """Generated source holds what Inductor never writes: an attack, or a defect of this package."""


def check_source(source: str, extension: str) -> None:
    """Checks a source that Inductor is about to compile or to run.

    Args:
        source: the whole of it.
        extension: of the file that it is written to ("py", "main.cpp"), or `TUNING`.

    Raises:
        UnexpectedSource: it holds what Inductor never writes.
    """
    kind = extension.rpartition(".")[2]
    if kind == "py":
        check_python(source, is_tuning=extension == TUNING)
    elif kind in ("cpp", "h"):
        check_cpp(source)


# Known to the generators, which are Python programs themselves, but never written into source.
_NEVER_WRITTEN = frozenset(
    names("""
    __asm __asm__ asm attribute breakpoint builtins clone_process connect constructor ctypes dlopen dlsym eval
    exec execl execv execve execvp exit filesystem fopen fork freopen from_file fstream getattr globals_ ifstream
    importlib input kill load_library locals mmap modules mprotect multiprocessing ofstream open openat os pickle popen
    posix_spawn ptrace putenv remove rename requests runpy section send setattr setenv shutil signal socket subprocess
    symlink sys syscall system tempfile thread tofile unlink urllib vars vfork write_atomic write_file write_text
""")
)
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"[\x20-\x7e]*")


def _is_known(word: str) -> bool:
    """Returns whether Inductor's generators write a name, or the parts of it ("tmp_acc0_vec")."""
    known, plain = words_of_generators(), _NUMBER.sub("", word)
    is_never_written = word in _NEVER_WRITTEN or word.strip("_") in _NEVER_WRITTEN
    return not is_never_written and (plain in known or known.issuperset(plain.split("_")))


# A compiler goes on with the next line there, in comments, too; `??/` stands for the backslash in old C++.
_CONTINUED = re.compile(r"(?:\\|\?\?/)[ \t\r\f\v]*\n")
_CPP_TOKENS = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)')
    | (?P<directive>\#[^\n]*)
    | (?P<number>\.?\d(?:[\w.]|[eEpP][+-])*(?!["'\w]))
    | (?P<word>[A-Za-z_]\w*(?!["'\w]))
    | (?P<sign>\s+|(?!%:)[-+*/%=<>!&|^~?:;,.(){}\[\]])
    """,
    re.VERBOSE | re.DOTALL,
)
_NEVER_OF_CPP = frozenset({"jit", "save", "serialize"})
_CPP_TEXT = re.compile(r"""["'](?:[^\\]|\\[0n'"\\])*["']""")
_INCLUDE = re.compile(r"#\s*include\b")
_DIRECTIVE = re.compile(
    r"""\#\s*(?:
        include\s*<\w[\w/.-]*>
        | pragma\s+(?:once|omp\b[\w\s():,+*]*|GCC\s+(?:ivdep|unroll\s+\d+)|unroll\b[\w\s()]*)
        | (?:ifdef|ifndef|undef)\s+\w+ | (?:if|elif)\b[\w\s()!&|<>=]* | else | endif | define\s+\w+[\w\s()!,&|*+-]*
    )\s*(?://.*)?""",
    re.VERBOSE,
)


def check_cpp(source: str) -> None:
    """Checks a program in C++.

    Raises:
        UnexpectedSource: it holds a directive, a name or a literal that no graph makes.
    """
    continued = _CONTINUED.search(source)
    if continued is not None:
        raise _unexpected("a line that goes on", source[continued.start() : continued.start() + 20])
    position = 0
    while position < len(source):
        token = _CPP_TOKENS.match(source, position)
        if token is None:
            raise _unexpected("a sign", source[position : position + 20])
        _check_cpp_token(token)
        position = token.end()


def _check_directive(text: str) -> None:
    is_known = _INCLUDE.match(text) is not None or all(_is_known(word) for word in _WORD.findall(text))
    if _DIRECTIVE.fullmatch(text) is None or ".." in text or not is_known:
        raise _unexpected("the directive", text)


def _check_cpp_token(token: re.Match[str]) -> None:
    text = token.group()
    match token.lastgroup:
        case "word" if text in _NEVER_OF_CPP or not _is_known(text):
            raise _unexpected("the name", text)
        case "directive":
            _check_directive(text.strip())
        case "text" if _PLAIN.fullmatch(text) is None or _CPP_TEXT.fullmatch(text) is None:
            raise _unexpected("the literal", text)


_MODULES = MODULES_IMPORTED | frozenset(
    names("""
    __future__ cmath ctypes math os random tempfile torch triton triton.language
""")
)
# What helpers of kernels import themselves.
_MODULES_OF_PYTHON = sys.stdlib_module_names - {"math"} | {"torch", "triton"}
# Imported at the top of every wrapper, and used by none (torch/_inductor/codegen/wrapper.py: write_header).
_UNUSED_MODULES = frozenset({"os", "tempfile", "random"})
_BUILTINS = frozenset(
    names("""
    AssertionError RuntimeError ValueError __file__ __name__ abs bool complex dict divmod enumerate float
    globals int isinstance len list max min next pow print range reversed round set sorted str sum super tuple
    type zip
""")
)
# Read and bound nowhere: in a part of the templates of flexible attention that Triton leaves out where there are no
# full blocks (torch 2.15: torch/_inductor/kernel/flex/templates), and where several kernels in one are measured, with
# benchmark_combo_kernel, which no program does that imports them (torch 2.11: codegen/triton_combo_kernel.py).
_LEFT_OUT = re.compile(r"sparse_full_(kv|q)_(idx|num_blks)_offset|cuda")
_MODULE_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Delete)
_NOWHERE = (ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Try, ast.NamedExpr, ast.Match)
_NEVER_OF_TORCH = _NEVER_WRITTEN | frozenset(
    names("""
    classes compile distributed export fx hub jit library load package save serialization storage utils
""")
)
_VALUES = (torch.dtype, torch.layout, torch.memory_format)
# Where a name stands for an operator: those of torch and of imported libraries, which the decoder has looked up.
_OPERATORS = re.compile(r"(torch\.ops\.\w+|aten|inductor_ops|_quantized|extern_kernels|prims|torch\.ops)(\.|$)")


def check_python(source: str, *, is_tuning: bool = False) -> None:
    """Checks a wrapper or a kernel for Triton, and the sources within it.

    Args:
        source: the whole module.
        is_tuning: it measures kernels, which it calls at the level of the module.

    Raises:
        UnexpectedSource: it holds an import, a name, a statement or a literal that no graph makes.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _unexpected("Python that cannot be parsed", str(error)) from None
    for statement in module.body:
        if not (is_tuning and _measures(statement)):
            _check_statement(statement)
    nodes = list(ast.walk(module))
    _check_globals(nodes)
    _check_paths(nodes)
    bound = _BUILTINS | set(_bound_names(nodes))
    sources = {id(source) for node in nodes for source in _sources_in(node)}
    for node in nodes:
        _check_node(node, bound=bound, is_source=id(node) in sources)


def _check_statement(statement: ast.stmt) -> None:
    if isinstance(statement, _MODULE_STATEMENTS):
        return
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"), attr="wait"))):
            return
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="triton_helpers"), attr="set_driver_to_gpu"))
        ):
            return
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return
    raise _unexpected("the statement", ast.unparse(statement))


def _measures(statement: ast.stmt) -> bool:
    """Returns whether a statement measures kernels (torch/_inductor/codegen/wrapper.py: kernel_autotune_calls)."""
    match statement:
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Attribute() as guard))], body=body):
            return ast.unparse(guard) == DEVICE_GUARD and all(map(_measures, body))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(), attr="run" | "zero_"))):
            return True
    return isinstance(statement, ast.Assign | ast.Delete | ast.Import | ast.ImportFrom)


def _check_node(node: ast.AST, *, bound: set[str] | frozenset[str], is_source: bool) -> None:
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                _check_import(alias.name)
        case ast.ImportFrom(module=str() as module, names=aliases):
            for alias in aliases:
                _check_imported(alias.name, module=module)
        case ast.Name(id=name) if name in _NEVER_WRITTEN or not (name in bound or _LEFT_OUT.fullmatch(name)):
            raise _unexpected("the name", name)
        case ast.Attribute():
            _check_attribute(node)
        case ast.Constant(value=str() as text):
            _check_text(text, is_source=is_source)
    if isinstance(node, _NOWHERE):
        raise _unexpected("a statement", type(node).__name__)


def _check_import(module: str) -> None:
    if module not in _MODULES:
        raise _unexpected("the import of", module)


def _check_imported(name: str, *, module: str) -> None:
    if not _is_imported(name, module=module):
        raise _unexpected("the import of", f"{module}.{name}")


def _is_imported(name: str, *, module: str) -> bool:
    """Returns whether Inductor's wrappers have this import."""
    if module == "ctypes":
        return name.startswith("c_")
    if name in _NEVER_WRITTEN:
        return False
    if module.startswith(("torch", "triton")):
        return (module, name) in imports_written() | IMPORTS_COMPUTED
    return module in _MODULES and _is_known(name)


def _check_globals(nodes: Sequence[ast.AST]) -> None:
    """Everything can be had from globals(): only `async_compile.wait` gets them."""
    told = [
        node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node) == "async_compile.wait(globals())"
    ]
    if sum(isinstance(node, ast.Name) and node.id == "globals" for node in nodes) > len(told):
        raise _unexpected("the name", "globals")


def _check_paths(nodes: Sequence[ast.AST]) -> None:
    """Checks paths from modules: only those that the generators write, since modules lead to all others."""
    imported = {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            path = ast.unparse(node)
            if path.partition(".")[0] in imported and not _is_reached(path):
                raise _unexpected("the attribute", path)


def _is_reached(path: str) -> bool:
    root, *rest = path.split(".")
    if _OPERATORS.match(path) or path in _values_of_torch():
        return True
    if root == "torch" and len(rest) == 1:
        return not is_module_of_torch(path)
    if root in ("torch", "triton") and rest[0] != "language":
        return any(".".join((root, *rest[:length])) in paths_written() for length in range(1, len(rest) + 1))
    return _MODULES_OF_PYTHON.isdisjoint(rest)


@functools.cache
def _values_of_torch() -> frozenset[str]:
    """Dtypes, layouts and memory formats as arguments of operators are written: by what they are called."""
    return frozenset(str(value) for value in vars(torch).values() if isinstance(value, _VALUES))


def _check_attribute(node: ast.Attribute) -> None:
    path = ast.unparse(node)
    if path in _values_of_torch():
        return
    root = path.partition(".")[0]
    is_never_written = node.attr in (_NEVER_OF_TORCH if path == f"torch.{node.attr}" else _NEVER_WRITTEN)
    if (
        is_never_written
        or node.attr.startswith("__")
        or root in _UNUSED_MODULES
        or not (_OPERATORS.match(path) or _is_known(node.attr))
    ):
        raise _unexpected("the attribute", path)


def _check_text(text: str, *, is_source: bool) -> None:
    if is_source:
        # Of C++ or for Triton, and how the first was tuned.
        (check_cpp if "#include" in text else check_python)(text)
    elif _PLAIN.fullmatch(text.replace("\n", "")) is None:
        raise _unexpected("the literal", text)


def _sources_in(node: ast.AST) -> Iterator[ast.Constant]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"), attr="cpp_pybinding" | "triton" | "cpp")):
            for argument in node.args[-1:]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument


def _bound_names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]


def _unexpected(what: str, found: str) -> UnexpectedSource:
    return UnexpectedSource(f"what was generated for this graph holds {what} {found!r:.120}, which no graph makes")
