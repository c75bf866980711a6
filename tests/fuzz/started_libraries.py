"""Programs of libraries (tests/wild) in processes that have imported all that comes before one file of a library, as it
is, and go on from there with the file as it was changed.

The libraries are copies, first on the path, so that what is changed lies on a disk as it would for a user.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pickle
import shutil
import signal
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn
from unittest import mock

import torch

from compilefarm.reuse.interception import Outcome
from tests.corpus.comparison import Leaf, differences, look_at
from tests.guard_timing import guards_not_timed
from tests.reuse.processes import pod
from tests.wild.program import Compiler, Program

# Of a processor, and by the clock: a change may have a program compute for ever, or wait.
_PROCESSOR_SECONDS, _SECONDS = 90.0, 600
# At so many lines of a function, that its process comes to, is looked.
_LOOKS = 3000
LIBRARIES = (
    "transformers", "timm", "torchvision", "diffusers", "peft", "accelerate", "torchao", "einops", "x_transformers",
    "vector_quantize_pytorch", "kornia", "entmax", "torchmetrics", "local_attention", "vit_pytorch", "e3nn",
    "torch_geometric", "monai", "segment_anything", "nystrom_attention", "siren_pytorch", "conformer",
    "perceiver_pytorch", "open_clip", "sentence_transformers",
)  # fmt: skip
# What becomes of a program. Other outcomes are these with more behind them.
REUSED, TRACED, WRONG, SAME = "is reused", "is traced", "is wrong", "computes the same"
NO_RESULT, NOT_IMPORTED, NOT_ASKED = "has no result of its own", "is not imported", "asks for nothing"
# How a change gets into a process: in the file; in compiled code beside a file as it was; by an import that is made
# again; by what another library sets on modules and classes.
WAYS = ("file", "bytecode", "reloaded", "patched")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of a file: its source, how that gets into a process (WAYS), and what it is in words."""

    file: str
    source: str
    way: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run has computed, or what it has raised."""

    leaves: Sequence[Leaf] = ()
    raised: str = ""

    def differences(self, expected: Result, program: Program) -> list[str]:
        """In words, what differs from what is expected."""
        if self.raised or expected.raised:
            return [] if self.raised == expected.raised else [f"raises {self.raised}, and not {expected.raised}"]
        return differences(self.leaves, expected.leaves, precision=program.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a program is made of, as one of its processes has shown.

    Attributes:
        modules: of the libraries, in the order in which their imports began.
        lines: of each of their files, those that ran at first, imports included, and those that run each time.
        result: what it computes.
    """

    modules: Sequence[str]
    lines: Mapping[str, tuple[set[int], set[int]]]
    result: Result


_NOTHING_STORED = "nothing is stored"
# Forks a process, and returns what the fork has told; None if it ended before.
Fork = Callable[[Change, Callable[[], Any]], Any]


class _Traced(BaseException):
    """A frame would be traced. No Exception, so that torch does not take it for one of its own."""


class _GoesOn(BaseException):
    """This process is a fork, which goes on with its imports."""


def copy_libraries(folder: Path) -> None:
    """Puts copies of all libraries that are installed first on the path."""
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        place = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
        # The shared objects of some find others beside the library.
        for each in (place, place.parent / f"{name}.libs") if place else ():
            if each.exists():
                shutil.copytree(each, folder / each.name)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def told_by_child(run: Callable[[], Any], *, is_limited: bool = True) -> Any:
    """What a process tells that does it; None if it ended before, as it does after some time if it is limited."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        if is_limited:
            _limit()
        _leave(run, telling=writing)
    os.close(writing)
    return _told_by(child, reading)


def _limit() -> None:
    signal.setitimer(signal.ITIMER_PROF, _PROCESSOR_SECONDS)
    signal.alarm(_SECONDS)


def _leave(run: Callable[[], Any], *, telling: int) -> NoReturn:
    try:
        told = pickle.dumps(run())
        with open(telling, "wb") as file:
            file.write(told)
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc(limit=-6)
    os._exit(0)


def _told_by(child: int, reading: int) -> Any:
    with open(reading, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return pickle.loads(told) if told else None


def see(program: Program, folder: Path) -> Seen:
    """Runs a program, and notes what it imports, and which lines of the libraries run then and when it runs again."""
    root, before = f"{folder}{os.sep}", set(sys.modules)
    first, result = _lines_of(program, root)
    modules = [name for name in sys.modules if name not in before and _is_of(name, root)]
    again, _ = _lines_of(program, root)
    return Seen(modules=modules, lines={name: (first[name], again[name]) for name in first}, result=result)


def _lines_of(program: Program, root: str) -> tuple[dict[str, set[int]], Result]:
    """Lines of files below a folder that a program runs, and what it computes."""
    lines: dict[str, set[int]] = defaultdict(set)
    # Loops that go over all files of a library would take minutes (transformers).
    left: dict[CodeType, int] = defaultdict(lambda: _LOOKS)

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(root) or left[code] < 0:
            return None
        noted = lines[code.co_filename]

        def trace(own: FrameType, _event: str, _argument: object) -> Any:
            noted.add(own.f_lineno)
            left[code] -= 1
            return trace if left[code] >= 0 else None

        return trace

    sys.settrace(enter)
    try:
        result = run(program, None)
    finally:
        sys.settrace(None)
    return lines, result


def _is_of(name: str, root: str) -> bool:
    # Some libraries put what is no module among the modules.
    module = sys.modules[name]
    spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
    return spec is not None and spec.name == name and (spec.origin or "").startswith(root)


def publish(program: Program, folder: Path) -> str:
    """Publishes what Dynamo finds of a program; returns why something of it is not published."""
    with pod(folder) as own:
        result = run(program, own.backend)
    missing = [f"{function}: {why}" for function, why in own.unpublished]
    return "; ".join(missing) or result.raised or ("" if own.outcomes else "no frame")


def find_again(program: Program, folder: Path, *, before: Result) -> tuple[str, set[str]]:
    """Why a program that was published is not reused as it is, and functions in which Dynamo finds nothing to compile,
    which are traced again."""
    with pod(folder, publishes=False) as own:
        found = run(program, own.backend)
    known = [each for each in own.outcomes if not each.was_reused and each.reason != _NOTHING_STORED]
    why = [f"{each.function}: {each.reason}" for each in known] + found.differences(before, program)
    if all(each.reason == _NOTHING_STORED for each in own.outcomes):
        why.append(_NOTHING_STORED)
    return "; ".join(why), {each.function for each in own.outcomes if not each.was_reused}


def reuse(program: Program, folder: Path, *, before: Result, traced: Collection[str]) -> str:
    """What becomes of a program in this process, whose libraries are what they are now.

    Args:
        program: that another process has published.
        folder: with what was published.
        before: what it computed then; nothing is tried if it does the same.
        traced: functions that are traced again in each process.
    """
    expected = told_by_child(lambda: run(program, None))
    if expected is None:
        return NO_RESULT
    if not expected.differences(before, program):
        return SAME

    def require_reuse(outcome: Outcome) -> None:
        # What is traced is right, and costs seconds.
        if not outcome.was_reused and outcome.function not in traced:
            raise _Traced(f"{outcome.function}: {outcome.reason}")

    try:
        with pod(folder, publishes=False, on_outcome=require_reuse) as own:
            found = run(program, own.backend)
    except _Traced as reason:
        return f"{TRACED}: {reason}"
    if not any(each.was_reused for each in own.outcomes):
        return NOT_ASKED
    differing = found.differences(expected, program)
    return f"{WRONG}: {'; '.join(differing)[:500]}" if differing else REUSED


def run(program: Program, backend: Any) -> Result:
    """Runs a program with a backend of torch.compile, or without."""
    compiler = Compiler(backend=backend, device=torch.device("cpu"))
    try:
        with guards_not_timed(), program.context(), torch.set_grad_enabled(program.training):
            torch.manual_seed(0)
            return Result(leaves=look_at("result", program.run(compiler)))
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        return Result(raised=type(error).__name__)


def import_and_stop(modules: Iterable[str], stops: Mapping[Path, Callable[[Fork], None]]) -> None:
    """Imports modules; what is to be done before a file is executed is told what forks this process at that moment.

    Such a fork goes on with its imports, in which the file is changed, acts, and tells the result to this process.
    """
    # What a fork is to do, where it is told.
    telling: list[tuple[Change, Callable[[], Any], int]] = []
    left, execute = {str(file): stop for file, stop in stops.items()}, SourceFileLoader.exec_module

    def fork(change: Change, act: Callable[[], Any]) -> Any:
        file = Path(change.file)
        was, (reading, writing) = (file.read_bytes(), file.stat()), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            telling.append((change, act, writing))
            raise _GoesOn
        os.close(writing)
        told = _told_by(child, reading)
        file.write_bytes(was[0])
        os.utime(file, ns=(was[1].st_atime_ns, was[1].st_mtime_ns))
        return told

    def come(loader: SourceFileLoader, module: ModuleType) -> None:
        try:
            if not telling and loader.path in left:
                left.pop(loader.path)(fork)
        except _GoesOn:
            _limit()
            _begin(telling[0][0], module, lambda: execute(loader, module))
        else:
            execute(loader, module)

    with mock.patch.object(SourceFileLoader, "exec_module", come):
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            if not telling:
                raise
            _leave(functools.partial(str, f"{NOT_IMPORTED}: {type(error).__name__}"), telling=telling[0][2])
    if telling:
        [(change, act, writing)] = telling
        _leave(lambda: _finished(change) or act(), telling=writing)


def _begin(change: Change, module: ModuleType, execute: Callable[[], None]) -> None:
    """Executes a module as a change has it at that moment."""
    sys.dont_write_bytecode = True
    if change.way == "bytecode":
        exec(compile(change.source, change.file, "exec"), vars(module))
        return
    if change.way == "file":
        _write(change)
    execute()


def _finished(change: Change) -> str:
    """Does what a change does to modules that were imported; returns why it cannot."""
    module = next(each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == change.file)
    try:
        if change.way == "reloaded":
            _write(change)
            importlib.reload(module)
        elif change.way == "patched":
            other = {name: value for name, value in vars(module).items() if name.startswith("__")}
            exec(compile(change.source, change.file, "exec"), other)
            _patch(vars(module), other, lambda name, value: setattr(module, name, value))
    except Exception as error:  # noqa: BLE001 - a change may raise anything
        return f"{NOT_IMPORTED}: {type(error).__name__}"
    return ""


def _patch(ours: Mapping[str, Any], theirs: Mapping[str, Any], put: Callable[[str, Any], None]) -> None:
    """Puts what differs of a module or class in the place of what was there, but for classes."""
    for name, value in list(theirs.items()):
        was = ours.get(name)
        if isinstance(value, FunctionType) and isinstance(was, FunctionType):
            # What calls super() knows the class that it was made in.
            if value.__code__ != was.__code__ and "__class__" not in value.__code__.co_freevars:
                put(name, value)
        elif isinstance(value, type) and isinstance(was, type) and value is not was:
            _patch(vars(was), vars(value), lambda key, each, owner=was: setattr(owner, key, each))
        elif isinstance(value, (int, float, str, tuple, dict)) and not name.startswith("__") and value != was:
            put(name, value)


def _write(change: Change) -> None:
    """Writes the file so that no compiled code passes for it."""
    moment = os.stat(change.file).st_mtime + 1000
    Path(change.file).write_text(change.source)
    os.utime(change.file, (moment, moment))
