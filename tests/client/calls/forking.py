"""A program for test_connection.py: compiles graphs in a process and in one forked from it."""

from __future__ import annotations

import os
import sys
import threading

match sys.argv[2]:
    case "grpc_was_imported_before":
        import grpc  # noqa: F401
    case "imports_began_in_a_thread":
        from compilefarm.warming import wait_until_warm, warm

        warm()
        wait_until_warm()

from compilefarm.client.dependencies import Dependencies
from compilefarm.client.farm import Farm
from compilefarm.client.testing import FakeGraphModule, FakeRuntime


def main(address: str, scene: str) -> None:
    working = threading.Event()
    go_on = threading.Event()

    def on_progress(phase: str, elapsed_seconds: float, jobs_ahead: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            working.set()
            go_on.wait()

    farm = Farm(address, on_progress=on_progress, dependencies=Dependencies(runtime=FakeRuntime()))
    thread = threading.Thread(target=compiled_by, args=(farm, "slow"))
    if scene != "before_first_call":
        compiled_by(farm, "first")
    if scene == "during_call":
        thread.start()
        working.wait()
    process = os.fork()
    if process == 0:
        print("child:", compiled_by(farm, "child"), flush=True)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    go_on.set()
    if thread.ident is not None:
        thread.join()
    print("parent:", compiled_by(farm, "last"), flush=True)
    sys.exit(os.waitstatus_to_exitcode(status))


def compiled_by(farm: Farm, name: str) -> str:
    where: str = farm.backend(FakeGraphModule(name), [])()[0]
    return where


if __name__ == "__main__":
    main(*sys.argv[1:])
