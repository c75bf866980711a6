"""`compilefarm serve --pool ray` as a process, with a Ray of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from pathlib import Path

import pytest
import torch

from tests.farm.serving import run, serve
from tests.processes import alive

pytestmark = pytest.mark.compiles

_LISTENING = "0A"  # include/net/tcp_states.h
# As the kernel prints them: 127.0.0.1, the same as an address of version 6, and ::1.
_LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.T, dim=-1).cumsum(0)


def test_a_farm_on_ray_compiles_stays_on_this_host_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path, ["--pool", "ray", "--slots", "1"]) as farm:
        processes = farm.children()
        assert listening_beyond_this_host(processes | {farm.process.pid}) == set()
        folders = {path.parent for path in named_sockets(processes) if path.name in ("raylet", "plasma_store")}
        assert folders
        assert all(is_closed_to_others(folder) for folder in folders), folders
        monkeypatch.setenv("COMPILEFARM_ADDRESS", farm.address)
        given = torch.randn(7, 5)
        torch.testing.assert_close(torch.compile(model, backend="compilefarm")(given), model(given))
        assert farm.count("compiled") == 1
        assert farm.stop(signal.SIGTERM) == 0
        assert alive(processes) == set()
        assert not any(folder.exists() for folder in folders)
        assert "SIGTERM received" not in farm.log.read_text()


def test_an_address_where_nobody_listens_ends_the_start_with_one_line() -> None:
    done = run("serve", "--allow-root", "--pool", "ray", "--ray-address", "127.0.0.1:1")
    assert done.returncode == 1
    assert "nobody listens at the Ray address 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def listening_beyond_this_host(processes: set[int]) -> set[str]:
    """Addresses, as the kernel prints them, on which processes take connections of other machines."""
    own = {inode for process in processes for inode in sockets_of(process)}
    return {
        local
        for table in ("tcp", "tcp6")
        for _, local, _, state, *_, inode in map(fields, Path("/proc/net", table).read_text().splitlines()[1:])
        if state == _LISTENING and inode in own and not local.startswith(_LOOPBACK)
    }


def named_sockets(processes: set[int]) -> set[Path]:
    """Sockets with a path at which processes listen."""
    own = {inode for process in processes for inode in sockets_of(process)}
    lines = map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:])
    return {Path(words[7]) for words in lines if len(words) > 7 and words[6] in own}


def is_closed_to_others(folder: Path) -> bool:
    """Whether some folder on the way lets nobody but its user pass."""
    return any(not each.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for each in (folder, *folder.parents))


def fields(line: str) -> list[str]:
    """Number, local address, remote address, state, and in the end the inode of a line of /proc/net/tcp."""
    words = line.split()
    return [*words[:4], words[9]]


def sockets_of(process: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    return found
