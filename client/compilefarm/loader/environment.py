"""Describes this machine as a compilefarm.v1.Environment."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from compilefarm.core.variables import matched_variables
from compilefarm.graph.encoded_jobs import EnvironmentNeeds
from compilefarm.graph.knobs import matched_knobs
from compilefarm.graph.operators import describe_operators
from compilefarm.loader.runtime_libraries import find_libgomp_version, find_libstdcxx_version
from compilefarm.v1.environment_pb2 import Cpu, Cuda, Environment, LibraryVersion

# Extensions that -march=native of GCC and Clang turns into instructions, by their names in /proc/cpuinfo. The others
# there (virtualisation, power, timers) differ between kernels and hosts of one kind of machine and change no program.
_CODE_EXTENSIONS = (
    "3dnow", "abm", "adx", "aes", "amx", "apx", "avx", "bmi", "cldemote", "clflushopt", "clwb", "clzero", "cmpccxadd",
    "cx16", "f16c", "fma", "fsgsbase", "fxsr", "gfni", "hle", "lahf_lm", "lwp", "lzcnt", "mmx", "movbe", "movdir",
    "mwaitx", "pclmulqdq", "pku", "popcnt", "prefetchi", "ptwrite", "rdpid", "rdrand", "rdseed", "rtm", "serialize",
    "sha", "sm3", "sm4", "sse", "ssse", "tbm", "vaes", "vpclmulqdq", "waitpkg", "xop", "xsave",
    # aarch64
    "asimd", "atomics", "bf16", "crc32", "dcpop", "flagm", "fp", "i8mm", "jscvt", "lrcpc", "pmull", "sb", "sve",
)  # fmt: skip


def describe_environment(needs: EnvironmentNeeds) -> Environment:
    """The environment of this process, with the parts that a graph needs.

    Args:
        needs: whether the graph computes on the CPU, on which GPU, with which operators of other libraries, and with
            Triton kernels of the user's own.
    """
    environment = _installation()
    environment.triton_kernels = needs.triton_kernels
    if needs.operators:
        environment.operators.extend(describe_operators(needs.operators))
    environment.libraries.extend(_libraries(needs.libraries))
    if needs.cpu:
        environment.cpu.CopyFrom(_cpu())
        environment.cpu.settings.extend(matched_variables(os.environ, device_type="cpu"))
    if needs.cuda_device is not None:
        environment.cuda.CopyFrom(_cuda(needs.cuda_device))
        environment.cuda.settings.extend((*matched_variables(os.environ, device_type="cuda"), *matched_knobs()))
    return environment


def describe_processor() -> Cpu:
    """The processor, and what this process is told about its use; without the libraries of the machine."""
    cpu = _cpu()
    settings = matched_variables(os.environ, device_type="cpu")
    return Cpu(architecture=cpu.architecture, instruction_sets=cpu.instruction_sets, settings=settings)


def look_ahead() -> None:
    """Reads the files that `describe_environment` reads and that stay as they are; it is quicker then."""
    _cpu_flags()
    find_libstdcxx_version()
    find_libgomp_version()


def _libraries(names: Iterable[str]) -> Iterator[LibraryVersion]:
    for name in sorted(names):
        if importlib.util.find_spec(name) is not None:
            yield LibraryVersion(name=name, version=importlib.metadata.version(name))


def _installation() -> Environment:
    return Environment(
        torch=str(torch.__version__),
        torch_build=str(torch.version.git_version),
        triton=_triton_version(),
        python_abi=str(sysconfig.get_config_var("SOABI")),
    )


@functools.cache
def _triton_version() -> str:
    # Triton takes a second to import, and a CPU job never does.
    if importlib.util.find_spec("triton") is None:
        return ""
    return importlib.metadata.version("triton")


@functools.cache
def _cpu() -> Cpu:
    return Cpu(
        architecture=platform.machine(),
        instruction_sets=sorted(name for name in _cpu_flags() if name.startswith(_CODE_EXTENSIONS)),
        glibc=platform.libc_ver()[1],
        libstdcxx=find_libstdcxx_version(),
        libgomp=find_libgomp_version(),
    )


@functools.cache
def _cpu_flags() -> set[str]:
    """Extensions that every processor of this machine has, as Linux lists them ("flags" on x86, "Features" on Arm)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    # Most processors of a machine are alike.
    texts = {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))}
    flags = [set(text.split()) for text in texts]
    return set.intersection(*flags) if flags else set()


@functools.cache
def _cuda(device: int) -> Cuda:
    properties = torch.cuda.get_device_properties(device)
    return Cuda(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        runtime=str(torch.version.cuda),
        cudnn=str(torch.backends.cudnn.version() or "none"),
    )
