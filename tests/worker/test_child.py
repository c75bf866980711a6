"""What is done before children are forked is of use to them."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_KINDS = tuple(itertools.product(("cpu", "cuda:0"), ("compiler", "verifier")))
# What fork servers have come to when they would begin to fork, a line each, as JSON. They are forks of one process that
# has imported what each of them imports first.
_FORKED = """
import ctypes, json, os, sys, threading
import torch
from compilefarm.builder import kernel_compiles
from compilefarm.core.starts import StartClock
from compilefarm.worker import child
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # It is linked with the library of a GPU's driver.
    kernel_compiles.build_driver_module = lambda: None

def serve(device, kind):
    child._preload(verifier=kind == "verifier", device=torch.device(device), clock=StartClock())
    threads = threading.active_count()
    if os.fork() == 0:
        with open("/proc/self/maps") as maps:
            shared = [line for line in maps if line.split()[1] == "rw-s"]
        is_broken = device != "cpu" and torch.cuda._is_in_bad_fork()
        print(json.dumps([threads, is_broken, shared]), flush=True)
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

for kind in json.loads(sys.argv[1]):
    assert threading.active_count() == 1
    if os.fork() == 0:
        serve(*kind)
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def servers() -> dict[tuple[str, str], list[object]]:
    """Threads of each kind of fork server, whether its children can start CUDA, and what memory they share."""
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, json.dumps(_KINDS)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return dict(zip(_KINDS, map(json.loads, said), strict=True))


@pytest.mark.compiles
@pytest.mark.parametrize("kind", _KINDS, ids="-".join)
def test_a_fork_server_leaves_nothing_that_its_children_cannot_use(
    servers: dict[tuple[str, str], list[object]], kind: tuple[str, str]
) -> None:
    # One thread; CUDA can be started where it is wanted; no memory that others write to.
    assert servers[kind] == [1, False, []]


_WAITING = "from compilefarm.worker.forks import wait_to_be_forked; wait_to_be_forked(); print('outside')"


def test_a_child_is_not_left_outside_because_the_handle_of_its_sandbox_got_lost(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, (tmp_path / "said").open("w+") as said:
        with theirs:
            server = subprocess.Popen([sys.executable, "-c", _WAITING], stdin=theirs, stderr=subprocess.PIPE, text=True)
        request = {"folder": str(tmp_path), "variables": {}, "sandbox": os.getpid(), "group": None}
        socket.send_fds(ours, [json.dumps(request).encode()], [said.fileno()] * 4)
        assert server.communicate(timeout=60)[1].splitlines()[-1] == "IndexError: list index out of range"
        assert server.returncode != 0
        assert said.read() == ""


_COLLECTING = "import gc; gc.disable(); " + _WAITING.replace("'outside'", "gc.isenabled(), flush=True")


def test_children_collect_their_garbage_though_nothing_was_collected_while_all_was_imported(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said, saying = os.pipe()
    with ours, os.fdopen(said) as answers:
        with theirs:
            server = subprocess.Popen([sys.executable, "-c", _COLLECTING], stdin=theirs)
        request = {"folder": str(tmp_path), "variables": {}, "sandbox": None, "group": None}
        with os.fdopen(saying, "w") as pipe, (tmp_path / "other").open("w+") as other:
            given = [other.fileno(), pipe.fileno(), other.fileno(), other.fileno()]
            socket.send_fds(ours, [json.dumps(request).encode()], given)
        assert answers.readline() == "True\n"
    assert server.wait(timeout=60) == 0
