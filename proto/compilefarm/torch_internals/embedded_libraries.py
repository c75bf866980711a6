"""Libraries that an exported program brings along: Inductor's builds of C++ are answered with them.

Exported programs hold the text of this module, and run it where nothing of ours is installed: it imports nothing but
Python and torch.
"""

import base64
import hashlib
import platform
import sysconfig
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def source_digest(kind: str, main_code: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Returns what a library is found by: the digest of what Inductor asks for."""
    # How the build is scheduled says nothing about what is built.
    flags = {name: value for name, value in kwargs.items() if name != "submit_fn"}
    digest = hashlib.sha256()
    for part in (kind, main_code, repr(args), repr(sorted(flags.items()))):
        content = part.encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def require_machine(*, python_abi: str, architecture: str, instruction_sets: Iterable[str], is_exact: bool) -> None:
    """Passes on a machine that runs what was built for another.

    Args:
        python_abi: binary interface of Python that it was built for.
        architecture: machine as uname says.
        instruction_sets: extensions that it may use, by their names in /proc/cpuinfo.
        is_exact: whether the machine may have no other vector extensions either: C++ that was written for shorter
            vectors and is compiled for longer ones computes something else.

    Raises:
        RuntimeError: this is no such machine.
    """
    here = str(sysconfig.get_config_var("SOABI"))
    if python_abi != here:
        raise RuntimeError(f"this program was exported for Python {python_abi}, and this is {here}")
    if architecture != platform.machine():
        raise RuntimeError(f"this program was exported for {architecture}, and this is {platform.machine()}")
    flags = processor_flags()
    lacking = {*instruction_sets} - flags
    further = {flag for flag in flags - {*instruction_sets} if flag.startswith(("avx", "amx", "sve"))}
    if lacking or (is_exact and further):
        raise RuntimeError(
            f"this program was exported for another processor: lacking are {sorted(lacking)}, and further ones "
            f"{sorted(further)}"
        )


def processor_flags() -> set[str]:
    """Returns the extensions that each processor of this machine has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = [set(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))]
    return set.intersection(*flags) if flags else set()


def answer_builds(libraries: Mapping[str, tuple[str, str]]) -> Callable[[], None]:
    """Has Inductor's builds of this thread answered until what is returned is called.

    Args:
        libraries: name and content (compressed, in base64) by digest of the source.
    """
    # Late: who only asks for a digest does not pay for it.
    from torch._inductor import codecache  # torch/_inductor/codecache.py: CppCodeCache.load_async

    thread, original = threading.get_ident(), codecache.CppCodeCache.__dict__["load_async"]

    def load_async(kind: Any, main_code: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        if threading.get_ident() != thread:
            build: Callable[[], Any] = original.__func__(kind, main_code, *args, **kwargs)
            return build
        name, text = libraries[source_digest(kind.__name__, main_code, args, kwargs)]
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(zlib.decompress(base64.b64decode(text)))
            file.flush()
            loaded = kind._load_library(file.name, name)
        return lambda: loaded

    codecache.CppCodeCache.load_async = classmethod(load_async)

    def end() -> None:
        codecache.CppCodeCache.load_async = original

    return end
