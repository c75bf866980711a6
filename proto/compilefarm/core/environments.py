"""Compatibility of environments: whether an artifact made in one runs in another. Gateway and loader both ask here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compilefarm.v1.environment_pb2 import Cpu, Cuda, CustomOperator, Environment

# What a farm says of requests that hold source.
KERNELS_REFUSED = "they are source code, which a farm runs only when it is started with serve --allow-triton-kernels"
_MOST_DIGITS = 9
_MOST_PARTS = 8


def differences(*, wanted: Environment, offered: Environment) -> list[str]:
    """Returns what keeps artifacts made in `offered` from running in `wanted`; empty if they run there.

    Args:
        wanted: the environment of the client; a part (cpu, cuda) that its graph does not need is absent.
        offered: the environment of a worker, or the one that a manifest names.
    """
    found = [
        f"{name} {theirs or 'absent'} is offered, {ours or 'absent'} is wanted"
        for name, ours, theirs in (
            ("torch", wanted.torch, offered.torch),
            ("torch build", wanted.torch_build, offered.torch_build),
            ("python", wanted.python_abi, offered.python_abi),
        )
        if ours != theirs
    ]
    if wanted.HasField("cpu"):
        found += cpu_differences(wanted=wanted.cpu, offered=offered.cpu)
    if wanted.HasField("cuda"):
        if wanted.triton != offered.triton:
            found.append(f"triton {offered.triton or 'absent'} is offered, {wanted.triton or 'absent'} is wanted")
        found += _cuda_differences(wanted=wanted.cuda, offered=offered.cuda)
    if wanted.triton_kernels and not offered.triton_kernels:
        found.append(f"Triton kernels of the user's own are wanted: {KERNELS_REFUSED}")
    return found + _library_differences(wanted, offered=offered) + _operator_differences(wanted=wanted, offered=offered)


def narrowed(offered: Environment, *, wanted: Environment) -> Environment:
    """Returns the part of an environment that the artifact of a job depends on: operators, kernels, libraries that it
    needs.
    """
    narrow = Environment()
    narrow.CopyFrom(offered)
    del narrow.operators[:]
    narrow.operators.extend(_operators(offered, wanted=wanted))
    del narrow.operator_libraries[:]
    libraries = {library.name for library in wanted.libraries}
    del narrow.libraries[:]
    narrow.libraries.extend(library for library in offered.libraries if library.name in libraries)
    narrow.triton_kernels = offered.triton_kernels and wanted.triton_kernels
    return narrow


def cpu_differences(*, wanted: Cpu, offered: Cpu) -> list[str]:
    """Like `differences`, for the processor alone: libraries built on `offered` must run on `wanted`."""
    found = []
    if wanted.architecture != offered.architecture:
        found.append(f"processor {offered.architecture or 'absent'} is offered, {wanted.architecture} is wanted")
    lacking = sorted(set(offered.instruction_sets) - set(wanted.instruction_sets))
    if lacking:
        found.append(f"the processor lacks {', '.join(lacking)}, which the worker's compiler uses")
    if _version(offered.glibc) > _version(wanted.glibc):
        found.append(f"glibc {offered.glibc} is offered, {wanted.glibc or 'absent'} or older is wanted")
    for name, ours, theirs in (
        ("libstdc++", wanted.libstdcxx, offered.libstdcxx),
        ("libgomp", wanted.libgomp, offered.libgomp),
    ):
        # Where one was not found, loading tells.
        if ours and theirs and _version(theirs) > _version(ours):
            found.append(f"{name} with symbols of {theirs} is offered, of {ours} or older is wanted")
    return found + _setting_differences(wanted.settings, offered=offered.settings)


def _setting_differences(wanted: Iterable[str], *, offered: Iterable[str]) -> list[str]:
    ours, theirs = set(wanted), set(offered)
    lacking = [f"{setting} is wanted (set it for compilefarm serve)" for setting in sorted(ours - theirs)]
    return lacking + [f"{setting} is offered, and not wanted" for setting in sorted(theirs - ours)]


def _library_differences(wanted: Environment, *, offered: Environment) -> list[str]:
    theirs = {library.name: library.version for library in offered.libraries}
    return [
        f"{library.name} {theirs.get(library.name, 'absent')} is offered, {library.version} is wanted"
        for library in wanted.libraries
        if theirs.get(library.name) != library.version
    ]


def _cuda_differences(*, wanted: Cuda, offered: Cuda) -> list[str]:
    return [
        f"{name} {theirs or 'absent'} is offered, {ours} is wanted"
        for name, ours, theirs in (
            ("GPU", wanted.name, offered.name),
            ("compute capability", wanted.capability, offered.capability),
            ("number of multiprocessors", wanted.multiprocessors, offered.multiprocessors),
            ("CUDA release", wanted.runtime, offered.runtime),
            # Older pods do not say it.
            ("cuDNN", wanted.cudnn, offered.cudnn if wanted.cudnn else ""),
        )
        if ours != theirs
    ] + _setting_differences(wanted.settings, offered=offered.settings)


def _operators(offered: Environment, *, wanted: Environment) -> Iterator[CustomOperator]:
    """Those that are wanted, as they are offered; a worker that imports a library for a request has it as is wanted."""
    known = {operator.name: operator for operator in offered.operators}
    libraries = {f"{library.name} {library.version}" for library in offered.operator_libraries}
    for operator in wanted.operators:
        if operator.name in known:
            yield known[operator.name]
        elif operator.library in libraries:
            yield operator


def _operator_differences(*, wanted: Environment, offered: Environment) -> list[str]:
    known = {operator.name: operator for operator in _operators(offered, wanted=wanted)}
    found = []
    for operator in wanted.operators:
        theirs = known.get(operator.name)
        if theirs is None:
            found.append(_lack(operator, offered=offered))
        elif theirs.schema != operator.schema:
            found.append(f"operator {theirs.schema} is offered, {operator.schema} is wanted")
        elif theirs.source_digest != operator.source_digest:
            found.append(f"operator {operator.name} is defined by another version of its source")
        elif theirs.library != operator.library:
            found.append(
                f"operator {operator.name} of {theirs.library or 'no library'} is offered, of"
                f" {operator.library or 'no library'} is wanted"
            )
    return found


def _lack(operator: CustomOperator, *, offered: Environment) -> str:
    """What keeps a worker from having an operator: its library, in another version, or not at all."""
    name, _, version = operator.library.rpartition(" ")
    theirs = {library.name: library.version for library in offered.operator_libraries}.get(name)
    if theirs is not None:
        return f"operator {operator.name} of {name} {version} is wanted, {name} {theirs} is offered"
    if not name:
        return f"operator {operator.name} is wanted (serve --import the module that registers it)"
    return (
        f"operator {operator.name} of {operator.library} is wanted (install it beside the worker; serve --libraries"
        " lists those that are taken, and serve --import takes modules of others)"
    )


def _version(text: str) -> tuple[int, ...]:
    # No version has longer or more numbers, and Python makes none of thousands of digits.
    parts = text.split(".", _MOST_PARTS)[:_MOST_PARTS]
    return tuple(int(part[:_MOST_DIGITS]) for part in parts if part.isdecimal())


def describe(environment: Environment) -> str:
    """Describes an environment in a line: "torch 2.11.0+cu130, cpython-311, NVIDIA H200 (9.0)"."""
    words = [f"torch {environment.torch}", environment.python_abi.removesuffix("-linux-gnu")]
    if environment.HasField("cuda"):
        words.append(f"{environment.cuda.name} ({environment.cuda.capability})")
    if environment.HasField("cpu"):
        widest = next(
            (name for name in ("amx_tile", "avx512f", "avx2") if name in environment.cpu.instruction_sets), ""
        )
        words.append(f"{environment.cpu.architecture} {widest}".strip())
    return ", ".join(word for word in words if word)
