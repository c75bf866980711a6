"""A program for test_farm_caches.py: reads entries in a process, and in one forked from it after more came."""

from __future__ import annotations

import os
import sys

from compilefarm.client.clock import SystemClock
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.farm_caches import FarmCaches
from compilefarm.v1.cache_service_pb2 import TorchCache


def main(address: str, keys: str) -> None:
    config, clock = ClientConfig(address=address), SystemClock()
    caches = FarmCaches(config, connection=Connection(config, clock=clock), clock=clock)
    print("parent:", sizes(caches, keys[0]), flush=True)
    process = os.fork()
    if process == 0:
        print("child:", sizes(caches, keys), flush=True)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    print("parent:", sizes(caches, keys[1:]), flush=True)
    sys.exit(os.waitstatus_to_exitcode(status))


def sizes(caches: FarmCaches, keys: str) -> str:
    return " ".join(f"{key}{len(caches.find(TorchCache.TORCH_CACHE_FX_GRAPH, key) or b'')}" for key in keys)


if __name__ == "__main__":
    main(*sys.argv[1:])
