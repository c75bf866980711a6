"""A Redis server for torch's remote caches."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Where torch looks for its server (torch/_inductor/remote_cache.py).
REDIS_URL = "TORCHINDUCTOR_REDIS_URL"
_PROGRAM = "redis-server"


def why_no_redis() -> str:
    """Why no server can be started here; empty if one can."""
    if shutil.which(_PROGRAM) is None:
        return f"there is no {_PROGRAM} on PATH: apt-get install redis-server"
    if importlib.util.find_spec("redis") is None:
        return "torch needs the package redis for it: pip install redis"
    return ""


@contextlib.contextmanager
def serving_redis(folder: Path) -> Iterator[str]:
    """A server that keeps all in memory, and its URL. It listens on this host alone."""
    folder.mkdir(exist_ok=True)
    port = _free_port()
    command = [_PROGRAM, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        # What it says until then.
        for line in process.stdout:
            if "ready to accept connections" in line.lower():
                break
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
