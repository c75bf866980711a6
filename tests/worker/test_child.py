"""What is done before children are forked is of use to them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_FORKED = """
import ctypes, os, sys, threading
import torch
from compilefarm.builder import kernel_compiles
from compilefarm.worker import child
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    # It is linked with the library of a GPU's driver.
    kernel_compiles.build_driver_module = lambda: None
child._preload(verifier=sys.argv[2] == "verifier", device=torch.device(sys.argv[1]))
print(threading.active_count(), flush=True)
if os.fork() == 0:
    with open("/proc/self/maps") as maps:
        shared = [line for line in maps if line.split()[1] == "rw-s"]
    print(sys.argv[1] != "cpu" and torch.cuda._is_in_bad_fork(), shared, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.compiles
@pytest.mark.parametrize("kind", ["compiler", "verifier"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_fork_server_leaves_nothing_that_its_children_cannot_use(device: str, kind: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, device, kind]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    # One thread; CUDA can be started where it is wanted; no memory that others write to.
    assert said == ["1", "False []"]


_WAITING = "from compilefarm.worker.forks import wait_to_be_forked; wait_to_be_forked(); print('outside')"


def test_a_child_is_not_left_outside_because_the_handle_of_its_sandbox_got_lost(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, (tmp_path / "said").open("w+") as said:
        with theirs:
            server = subprocess.Popen([sys.executable, "-c", _WAITING], stdin=theirs, stderr=subprocess.DEVNULL)
        request = {"folder": str(tmp_path), "variables": {}, "sandbox": os.getpid()}
        socket.send_fds(ours, [json.dumps(request).encode()], [said.fileno()] * 4)
        assert server.wait(timeout=60) != 0
        assert said.read() == ""
