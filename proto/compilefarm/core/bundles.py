"""Mega-Cache bundles: their names, what keeps a push from being of use on another machine, and what a bundle holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from compilefarm.core.digests import digest_of
from compilefarm.core.errors import InvalidRequest
from compilefarm.v1.bundle_pb2 import BundlePart, BundlePush, CompilerFacts
from compilefarm.v1.environment_pb2 import Environment

# Decisions on dynamic shapes say nothing of a machine.
NEUTRAL_KINDS = frozenset({"pgo"})
# torch keeps one content for each key of these; of the others any number, and looks at each.
_REPLACED_KINDS = frozenset({"autotune", "pgo", "precompile"})
# Facts of a compiler that torch's keys leave out before 2.15, and that nobody knows of those who have filled a folder.
DEFAULT_DTYPE, THREADS, AUTOCAST = "default dtype", "threads", "autocast"
_UNKNOWN_OF_FOLDERS = frozenset({DEFAULT_DTYPE, THREADS, AUTOCAST})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
# torch joins some keys to the path of a folder.
_LONGEST_PART_KEY = 1000


def check_bundle_name(text: str) -> str:
    """Returns `text` if it can name a bundle.

    Raises:
        InvalidRequest: it cannot.
    """
    if _NAME.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text[:80]!r} names no bundle: use up to 200 letters, digits and . _ / -, a letter or digit first"
        )
    return text


def key_prefix_of(name: str) -> str:
    """Returns how the keys of all pushes to a bundle begin."""
    return f"{check_bundle_name(name)} "


def key_of_push(name: str, content: bytes) -> str:
    """Returns the key of a push."""
    return key_prefix_of(name) + digest_of(content)


def machine_differences(*, here: Environment, there: Environment) -> list[str]:
    """Returns what keeps compiled parts that were made `there` from being of use `here`; empty if nothing does.

    Stricter than for artifacts: torch compiles the C++ of a cached graph anew, and its keys do not say for which
    vector instructions that was written (torch/_inductor/codecache.py: FxGraphHashDetails).
    """
    return torch_differences(here=here, there=there) + [
        f"{name} {theirs or 'absent'} made it, {ours or 'absent'} is here"
        for name, ours, theirs in (
            ("Python", here.python_abi, there.python_abi),
            ("Triton", here.triton, there.triton),
            *_cuda_facts(here, there),
            ("processor", here.cpu.architecture, there.cpu.architecture),
            ("instruction set", *_only(here.cpu.instruction_sets, there.cpu.instruction_sets)),
            ("setting", *_only(_settings(here), _settings(there))),
        )
        if ours != theirs
    ]


def compiler_differences(*, here: BundlePush, there: BundlePush) -> list[str]:
    """Returns what keeps compiled parts that were made `there` from being of use `here`, where torch's keys do not
    say it: libraries, operators and switches of the process; empty if nothing does.
    """
    if not there.HasField("compiler"):
        return ["which libraries and operators of its own a process had that made it is not said"]
    unknown = _UNKNOWN_OF_FOLDERS if here.compiler.of_folder or there.compiler.of_folder else frozenset()
    ours, theirs = _by_name(here.compiler), _by_name(there.compiler)
    return [
        f"{name} {made or 'absent'} made it, {found or 'absent'} is here"
        for name in sorted((ours.keys() | theirs.keys()) - unknown)
        for found, made in [_only(ours.get(name, ()), theirs.get(name, ()))]
        if found != made
    ]


def _by_name(compiler: CompilerFacts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fact in compiler.facts:
        found.setdefault(fact.name, []).append(fact.value)
    return found


def is_made_alike(one: BundlePush, other: BundlePush) -> bool:
    """Returns whether two pushes say the same of where their parts were made."""
    return (
        one.environment == other.environment
        and one.HasField("compiler") == other.HasField("compiler")
        and one.compiler == other.compiler
    )


def torch_differences(*, here: Environment, there: Environment) -> list[str]:
    """Returns what keeps parts that say nothing of a machine from being read here: another torch wrote them."""
    return [
        f"{name} {theirs or 'absent'} made it, {ours or 'absent'} is here"
        for name, ours, theirs in (
            ("torch", here.torch, there.torch),
            ("torch build", here.torch_build, there.torch_build),
        )
        if ours != theirs
    ]


def _cuda_facts(here: Environment, there: Environment) -> Iterator[tuple[str, str, str]]:
    ours, theirs = here.cuda, there.cuda
    yield "GPU", ours.name, theirs.name
    yield "compute capability", ours.capability, theirs.capability
    yield "number of multiprocessors", str(ours.multiprocessors or ""), str(theirs.multiprocessors or "")
    yield "CUDA release", ours.runtime, theirs.runtime
    yield "cuDNN", ours.cudnn, theirs.cudnn


def _settings(environment: Environment) -> list[str]:
    return [*environment.cpu.settings, *environment.cuda.settings]


def _only(ours: Iterable[str], theirs: Iterable[str]) -> tuple[str, str]:
    """What each has that the other has not."""
    return ", ".join(sorted({*ours} - {*theirs})), ", ".join(sorted({*theirs} - {*ours}))


def parts_of(pushes: Sequence[BundlePush]) -> list[BundlePart]:
    """Returns what a bundle holds after these pushes, the latest last: each part once, and of a cache that keeps one
    content for a key the one that was pushed last.
    """
    found: dict[tuple[str, str, str], BundlePart] = {}
    for push in pushes:
        for part in push.parts:
            found[_place_of(part)] = part
    return list(found.values())


def new_parts(parts: Sequence[BundlePart], *, pushes: Sequence[BundlePush]) -> list[BundlePart]:
    """Returns those of some parts, the latest last, that a bundle does not hold after these pushes."""
    held = {(_place_of(part), part.digest) for part in parts_of(pushes)}
    return [part for part in parts_of([BundlePush(parts=parts)]) if (_place_of(part), part.digest) not in held]


def _place_of(part: BundlePart) -> tuple[str, str, str]:
    return part.kind, part.key, "" if part.kind in _REPLACED_KINDS else part.digest


def is_usable_key(key: str) -> bool:
    """Returns whether a key of a part stays within the folders of torch's caches, some of which it is joined to."""
    steps = key.split("/")
    stays = not {"", ".", ".."} & {*steps}
    return stays and 0 < len(key) <= _LONGEST_PART_KEY and key.isprintable()
