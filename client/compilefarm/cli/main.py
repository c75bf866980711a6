"""The `compilefarm` command."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from compilefarm.core.errors import FarmError
from compilefarm.core.printable import printable

# Where each command lives, and what it does. Imported only when it is used: a pod that asks for the status has no
# gateway installed, and nothing that is installed has benchmarks.
_BENCHMARKS = "compilefarm.benchmarks"
COMMANDS = {
    "serve": ("compilefarm.cli.serve", "run a farm: gateway, workers on this host, and a store"),
    "demo": (
        "compilefarm.benchmarks.demo",
        "run a model with an empty and with a warm farm on this machine, and show the seconds of each",
    ),
    "bench": (
        "compilefarm.benchmarks.command",
        "measure a farm and its alternatives (caches, ahead-of-time compiles) on this machine",
    ),
    "status": ("compilefarm.cli.status", "show workers, queue, hits and store of a farm"),
    "workers": ("compilefarm.cli.workers", "show what the workers of a farm are doing"),
    "jobs": ("compilefarm.cli.jobs", "show what a farm compiles, what waits, and what it does not try"),
    "cancel": ("compilefarm.cli.cancel", "end a job"),
    "retry": ("compilefarm.cli.retry", "take a key out of quarantine, so that it is compiled again"),
    "drain": ("compilefarm.cli.drain", "have a farm refuse new requests, and wait until its jobs are done"),
    "inspect": ("compilefarm.cli.inspect", "describe what a farm has stored under a key"),
    "doctor": ("compilefarm.cli.doctor", "check this machine, a store and a farm, and say what to do"),
    "health": ("compilefarm.cli.health", "say whether a farm takes requests, by the exit status; needs no token"),
    "keys": ("compilefarm.cli.keys", "make tokens for callers, and keys that sign artifacts"),
    "signer": ("compilefarm.cli.signer", "keep the signing key of a farm in a process of its own"),
    "prewarm": ("compilefarm.cli.prewarm", "have a farm compile what a workload asked for, before its pods start"),
    "cache": (
        "compilefarm.cli.cache",
        "keep torch's own caches in a farm, and fill them from there: Mega-Cache bundles",
    ),
    "tuning": (
        "compilefarm.cli.tuning",
        "show which configurations of Triton's kernels were measured to be best, and give them to another farm",
    ),
    "gc": ("compilefarm.cli.gc", "delete from a store what is no longer needed, and what makes it larger than a limit"),
    "explain": ("compilefarm.cli.explain", "describe a saved request, or how two requests differ"),
}
# Anybody may call what these serve. gRPC writes a line for each call and connection that it refuses by itself, to
# standard error and without an end. It has to be told before it is imported.
_SERVING = ("serve", "signer")
_GRPC_LINES = ("GRPC_VERBOSITY", "NONE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns its exit status: 0 done, 1 it could not be done, 2 it was asked wrongly."""
    parser = argparse.ArgumentParser(
        prog="compilefarm",
        description="A compile farm for torch.compile.",
        epilog="compilefarm COMMAND --help says more",
    )
    version = f"%(prog)s {importlib.metadata.version('compilefarm')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _SERVING:
        os.environ.setdefault(*_GRPC_LINES)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name in given[:1]:
            command.set_defaults(run=_load(module, command))
    parsed = parser.parse_args(given)
    try:
        code: int = parsed.run(parsed)
    except FarmError as error:
        print(f"compilefarm {parsed.command}: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough. Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _load(module: str, command: argparse.ArgumentParser) -> object:
    try:
        implementation = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == _BENCHMARKS:
            command.error("it is no part of what is installed; in a checkout of Compilefarm: python3 dev.py setup")
        if (error.name or "").startswith("compilefarm"):
            raise
        command.error(f"the package {error.name!r} is missing; install compilefarm[all]")
    implementation.add_arguments(command)
    return implementation.run


if __name__ == "__main__":
    sys.exit(main())
