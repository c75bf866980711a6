"""Runs a Python program as the user nobody: `python as_nobody.py PROGRAM ARGUMENTS`, as the administrator.

An interpreter may lie in a home that is closed to others. So the program runs in a mount namespace of its own, in which
each closed folder on the way to the interpreter and this checkout is an open one that holds nothing else.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534
# linux/sched.h, linux/mount.h
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
# linux/capability.h
_CAP_SYS_ADMIN = 21
_libc = ctypes.CDLL(None, use_errno=True)


def why_nobody_cannot_run() -> str | None:
    """Why this process cannot run a program so; None if it can."""
    if os.geteuid() != 0:
        return "only the administrator can become somebody else"
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if not int(status["CapEff"], 16) & 1 << _CAP_SYS_ADMIN:
        return "the administrator has no CAP_SYS_ADMIN here, and can mount nothing for nobody to see"
    return None


def main() -> None:
    checkout = Path(__file__).resolve().parents[2]
    named = (sys.prefix, sys.base_prefix, sys.executable, os.path.realpath(sys.executable), checkout, *sys.path)
    _open_the_way([path.absolute() for path in map(Path, named) if path.exists()])
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def _open_the_way(needed: Iterable[Path]) -> None:
    """Lets everybody get to some files and folders, as far as this process and its children see them."""
    # Of this namespace have to be the handles, too, which lead there when the folders are covered.
    _check(_libc.unshare(_CLONE_NEWNS), "unshare(2)")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    hidden: dict[Path, dict[Path, int]] = {}
    for path in needed:
        closed = _closed_folder(path)
        if closed is not None:
            inside = path.iterdir() if closed == path else [path]
            hidden.setdefault(closed, {}).update({each: os.open(each, os.O_PATH) for each in inside})
    for closed, handles in hidden.items():
        _mount("none", closed, "tmpfs", 0)
        closed.chmod(0o755)
        for path, handle in sorted(handles.items()):
            _show(path, handle)


def _closed_folder(path: Path) -> Path | None:
    """The outermost folder on the way that others may not pass."""
    folders = [folder for folder in (*reversed(path.parents), path) if folder.is_dir()]
    return next((folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH), None)


def _show(path: Path, handle: int) -> None:
    """Mounts what a handle leads to where it was."""
    if path.exists():
        # It lies in what is shown already.
        return
    source = Path(f"/proc/self/fd/{handle}")
    (path if source.is_dir() else path.parent).mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        path.touch()
    _mount(source, path, None, _MS_BIND | _MS_REC)


def _mount(source: str | Path, target: str | Path, kind: str | None, flags: int) -> None:
    filesystem = None if kind is None else kind.encode()
    made = _libc.mount(os.fsencode(source), os.fsencode(target), filesystem, ctypes.c_ulong(flags), None)
    _check(made, f"mount(2) at {target}")


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call} failed")


if __name__ == "__main__":
    main()
