"""Copies an interpreter, so that a child cannot change the file that others run."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess

log = logging.getLogger(__name__)

_ELF = b"\x7fELF"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_LIMIT_SECONDS = 60


def copy_in_memory(program: str) -> int | None:
    """Copies an interpreter into memory. Returns the descriptor, to be started as /proc/PID/fd/NUMBER and then closed;
    None if no copy can be made.

    A process can reach the file that it was started from in every sandbox that it joins (/proc/self/exe, proc(5)), as
    it was mounted outside: whoever takes over a child could make the interpreter of this machine one that runs with the
    rights of its owner.

    Args:
        program: the interpreter, as in a command.
    """
    found = shutil.which(program)
    if found is None or not _is_program(found):
        return None
    copy = -1
    try:
        copy = _copy(found)
        # Not if it looks for its library beside itself.
        subprocess.run(
            [program, "-I", "-S", "-c", ""],
            executable=f"/proc/{os.getpid()}/fd/{copy}",
            capture_output=True,
            check=True,
            timeout=_LIMIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        # Nor where memory may not be run (memfd_create(2), proc(5): vm.memfd_noexec).
        log.info("children run %s itself, since a copy does not run: %s", program, error)
        if copy >= 0:
            os.close(copy)
        return None
    return copy


def _is_program(path: str) -> bool:
    """Returns whether the file is a program, and no script."""
    with open(path, "rb") as file:
        return file.read(len(_ELF)) == _ELF


def _copy(path: str) -> int:
    copy = os.memfd_create("interpreter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb") as file, open(copy, "wb", closefd=False) as into:
        shutil.copyfileobj(file, into)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    return copy
