"""The sources that Inductor generates, before it compiles or runs them."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import torch

from compilefarm.torch_internals.generated_code import telling_sources

# Whose text is in what Inductor generates. The wrappers in C++ are none of a farm's.
_GENERATORS = (
    "codecache.py",
    "cpu_vec_isa.py",
    "ir.py",
    "mkldnn_lowerings.py",
    "utils.py",
    "wrapper_benchmark.py",
    "codegen/**/*.py",
    "kernel/**/*",
    "runtime/*.py",
)
_OTHERS = ("wrapper_cpu", "wrapper_gpu", "wrapper_mps", "cutlass", "rocm", "halide", "pallas", "aoti")
# The extension that stands for what measures kernels, which lies in no file.
TUNING = "tuning.py"
# Outside of Inductor: what kernels include, and what writes their expressions of sizes.
_OUTSIDE = ("include/torch/csrc/inductor/cpp_prefix.h", "utils/_sympy/printers.py")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d+")
_IMPORT_WRITTEN = re.compile(r"\bfrom\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)")
_NAME_IMPORTED = re.compile(r"(\w+)(?:\s+as\s+\w+)?")
_PATH_WRITTEN = re.compile(r"\b(?:torch|triton)(?:\.\w+)+")


@functools.cache
def words_of_generators() -> frozenset[str]:
    """Every word in what generates sources, and the parts of these words between underscores; without numbers."""
    words = {word for text in _texts() for word in _WORD.findall(_NUMBER.sub("", text))}
    return frozenset(words | {part for word in words for part in word.split("_")})


@functools.cache
def imports_written() -> frozenset[tuple[str, str]]:
    """Module and name of every import that stands in a text of what generates sources."""
    return frozenset(
        (module, name)
        for literal in _literals()
        if "import" in literal
        for module, names in _IMPORT_WRITTEN.findall(literal)
        for name in _NAME_IMPORTED.findall(names)
    )


@functools.cache
def paths_written() -> frozenset[str]:
    """What stands in a text of what generates sources as a path from torch or Triton ("torch.cuda.set_device"), and is
    no module of torch's."""
    literals = (
        _IMPORT_WRITTEN.sub("", literal) for literal in _literals() if "torch." in literal or "triton." in literal
    )
    paths = {path for literal in literals for path in _PATH_WRITTEN.findall(literal)}
    return frozenset(path for path in paths if not is_module_of_torch(path))


def is_module_of_torch(path: str) -> bool:
    """Returns whether a path ("torch.cuda.set_device") is that of a module of torch's, imported or not."""
    root, *rest = path.split(".")
    place = Path(torch.__file__).parent.joinpath(*rest)
    return root == "torch" and (path in sys.modules or place.is_dir() or place.with_suffix(".py").is_file())


@functools.cache
def _literals() -> frozenset[str]:
    """The texts within what generates sources; a template is one."""
    programs = [path for path in _files() if path.suffix == ".py"]
    templates = [path.read_text(encoding="utf-8") for path in _files() if path.suffix == ".jinja"]
    # Python has compiled most of them already.
    return frozenset([*templates, *(text for path in programs for text in _texts_of(_code(path)))])


def _code(path: Path) -> CodeType | None:
    return SourceFileLoader(path.stem, str(path)).get_code(path.stem)


def _texts_of(constant: object) -> Iterator[str]:
    """The texts among the constants of a program."""
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, CodeType | tuple):
        for part in constant.co_consts if isinstance(constant, CodeType) else constant:
            yield from _texts_of(part)


@functools.cache
def _texts() -> tuple[str, ...]:
    outside = (Path(torch.__file__).parent / path for path in _OUTSIDE)
    return tuple(path.read_text(encoding="utf-8") for path in (*_files(), *outside))


@functools.cache
def _files() -> tuple[Path, ...]:
    folder = Path(torch.__file__).parent
    files = [path for pattern in _GENERATORS for path in (folder / "_inductor").glob(pattern)]
    files = [path for path in files if not any(other in str(path.relative_to(folder)) for other in _OTHERS)]
    return tuple(path for path in files if path.suffix in (".py", ".jinja"))


@contextlib.contextmanager
def watching_sources(check: Callable[[str, str], None]) -> Iterator[None]:
    """Inside, every source is looked at before it is run, or lies in a file from which it would be compiled or run.

    Args:
        check: called with a source and the extension of its file (`TUNING` for what lies in none); raises what is
            raised for the whole then, even where Inductor would go on without that source (the choices of
            max-autotune).
    """
    refused: list[Exception] = []

    def look_at(source: object, extension: str) -> None:
        if not isinstance(source, str):
            return
        try:
            check(source, extension)
        except Exception as error:
            refused.append(error)
            raise

    try:
        with telling_sources(
            written=look_at,
            of_kernel=lambda source: look_at(source, "py"),
            of_tuning=lambda source: look_at(source, TUNING),
        ):
            yield
    except Exception as error:
        if refused:
            raise refused[0] from error
        raise
    if refused:
        raise refused[0]
