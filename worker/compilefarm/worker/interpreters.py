"""A copy of an interpreter that nobody else runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess

_ELF = b"\x7fELF"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_LIMIT_SECONDS = 60


def throwaway_copy(program: str) -> int | None:
    """A file in memory that runs as an interpreter does, to be closed once it has been started from
    /proc/PID/fd/NUMBER; None if there can be none.

    What a process was started from it can reach in every sandbox that it joins (/proc/self/exe, proc(5)), as it was
    mounted where it was started: whoever takes over a child could make the interpreter of this machine one that runs
    with the rights of its owner.

    Args:
        program: the interpreter, as in a command.
    """
    found = shutil.which(program)
    if found is None:
        return None
    with open(os.path.realpath(found), "rb") as file:
        if file.read(len(_ELF)) != _ELF:
            # A script that starts one.
            return None
        file.seek(0)
        copy = os.memfd_create("interpreter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(copy, "wb", closefd=False) as into:
            shutil.copyfileobj(file, into)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    # Not if it looks for its library beside itself, nor where memory may not be run.
    tried = subprocess.run(
        [program, "-I", "-S", "-c", ""],
        executable=f"/proc/{os.getpid()}/fd/{copy}",
        capture_output=True,
        check=False,
        timeout=_LIMIT_SECONDS,
    )
    if tried.returncode == 0:
        return copy
    os.close(copy)
    return None
