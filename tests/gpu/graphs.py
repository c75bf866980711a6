"""Times programs of a farm under CUDA graphs beside Inductor's: `python -m tests.gpu.graphs [NAME ...]`, in the root of
the checkout.

Starts a farm with the GPU. For each name one process calls the farm's program and Inductor's in turn (`--only turns`);
fresh ones go from a model to the third call, which is the first that replays (`--only fresh`): a pod without a compiler
and with empty caches, the same with a package of what Dynamo found, one with Inductor's warm cache, and with `--saved`
pods that load a saved function, too. Prints tables.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from compilefarm.core.signatures import new_signing_key
from tests.farm.serving import bare_environment, serve

from .graph_cases import CASES, GENERATE

_ROOT = Path(__file__).parent.parent.parent
# Ways from a model to the third call, in a process of its own each.
_FRESH = ("inductor", "farm", "reused", "saved")
# torch saves one graph without gradients.
_NOT_SAVED = ("training step", GENERATE)
Seen = dict[str, Any]
Environments = dict[str, Callable[[], Mapping[str, str]]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.graphs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join((*CASES, GENERATE))}")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mode", default="reduce-overhead")
    parser.add_argument("--only", choices=("turns", "fresh"))
    parser.add_argument("--saved", action="store_true", help="with functions that were compiled ahead of time, too")
    parser.add_argument("--pairs", type=int, default=3, help="fresh processes of each kind, in turn")
    parser.add_argument(
        "--profiles", type=Path, help="folder for what fresh pods spend their time with, in one more each"
    )
    parser.add_argument("--seconds", type=float, default=470.0, help="after these, no further process is started")
    arguments = parser.parse_args()
    names = arguments.names or [GENERATE, *CASES]
    with tempfile.TemporaryDirectory() as place:
        rows = _rows(arguments, Path(place), names)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in (_table_of_turns(rows), _table_of_fresh(rows)):
        console.print(table)
    for name in names:
        seconds = {how: [row["seconds"] for row in _kept(rows, how, name)] for how in _FRESH}
        middle = {how: statistics.median(each) for how, each in seconds.items() if each}
        for how in (how for how in _FRESH[1:] if {how, "inductor"} <= middle.keys()):
            share = middle[how] / middle["inductor"]
            console.print(f"{name}, {how}: {middle[how]:.2f} s to the third call, {share:.2f} of a warm local cache")
    lost = [row for row in rows if "lost" in row]
    for row in lost:
        console.print(f"{row['how']}, {row['name']}: {row['lost']}", markup=False, highlight=False)
    return 1 if lost else 0


def _rows(arguments: argparse.Namespace, folder: Path, names: Sequence[str]) -> list[Seen]:
    until = time.monotonic() + arguments.seconds
    # Also what the driver keeps of kernels that it has compiled itself, such as cuDNN's: it is no cache of torch.
    everywhere = os.environ | {"CUDA_CACHE_PATH": str(folder / "cuda")}
    local = everywhere | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "local"),
        "TRITON_CACHE_DIR": str(folder / "local" / "triton"),
    }
    rows: list[Seen] = []
    key = new_signing_key()
    (folder / "publisher.pem").write_bytes(key.pem())
    publishing = {"COMPILEFARM_DYNAMO": "publish", "COMPILEFARM_PACKAGE_SIGNING_KEY": str(folder / "publisher.pem")}
    reusing = {"COMPILEFARM_DYNAMO": "reuse", "COMPILEFARM_TRUSTED_PACKAGE_KEYS": key.public.text}
    device = arguments.device.partition(":")[0]
    with serve(folder, ("--cache-size-limit", "1GB"), device=device) as farm:
        bare = functools.partial(_bare, folder, everywhere, farm.address)
        environments: Environments = {"turns": lambda: local | {"COMPILEFARM_ADDRESS": farm.address}}
        environments |= {"inductor": lambda: local, "farm": bare, "saved": bare, "save": bare}
        environments |= {"publish": lambda: {**bare(), **publishing}, "reused": lambda: {**bare(), **reusing}}
        saved = [name for name in names if arguments.saved and name not in _NOT_SAVED]
        ways = {name: ["inductor", "farm", "reused", *(("saved",) if name in saved else ())] for name in names}

        def run(how: str, name: str, *further: str) -> Seen | None:
            if time.monotonic() >= until:
                return None
            if how in ("save", "saved"):
                further = (*further, "--function", str(folder / f"{name}.function"))
            seen = _run(how, name, arguments, environments[how](), *further, until=until)
            print(json.dumps(seen), flush=True)
            return seen

        if arguments.only == "fresh":
            _warm_up(names, arguments, environments, until=until)
        for name in names if arguments.only != "fresh" else ():
            # Leaves an artifact in the farm, and Inductor's caches.
            rows += filter(None, [run("turns", name)])
        for name in names if arguments.only != "turns" else ():
            run("publish", name)
        for name in saved:
            run("save", name)
        for number in range(arguments.pairs if arguments.only != "turns" else 0):
            for name in names:
                rows += filter(None, [run(how, name) for how in ways[name][:: -1 if number % 2 else 1]])
        for name in names if arguments.profiles else ():
            for how in ways[name]:
                run(how, name, "--profile", str(arguments.profiles / f"{how}-{name.replace(' ', '-')}.txt"))
    return rows


def _warm_up(
    names: Sequence[str],
    arguments: argparse.Namespace,
    environments: Environments,
    *,
    until: float,
) -> None:
    """Has the farm and Inductor compile all, side by side."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        for how in ("inductor", "farm"):
            for name in names:
                pool.submit(_run, how, name, arguments, environments[how](), until=until)


def _bare(folder: Path, environment: Mapping[str, str], address: str) -> Mapping[str, str]:
    """Of a pod without a compiler, and with empty caches of torch and Triton."""
    caches = Path(tempfile.mkdtemp(prefix="pod-", dir=folder))
    bare = bare_environment(caches, address) | {
        "COMPILEFARM_SELF_CHECK": "0",
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    return {**environment, **bare}


def _run(
    how: str, name: str, arguments: argparse.Namespace, environment: Mapping[str, str], *further: str, until: float
) -> Seen:
    """What a process says, or what became of it."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-W", "ignore", "-m", "tests.gpu.graph_pod", how, name),
                *("--device", arguments.device, "--mode", arguments.mode, *further),
            ],
            env={**environment, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "0"},
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=max(until + 20 - begin, 1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"how": how, "name": name, "lost": "there was no time for it"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"how": how, "name": name, "lost": f"status {done.returncode}: {done.stderr[-2500:]}"}
    return {**json.loads(lines[-1]), "process_seconds": time.monotonic() - begin}


def _kept(rows: Sequence[Seen], how: str, name: str) -> list[Seen]:
    return [row for row in rows if (row["how"], row["name"]) == (how, name) and "lost" not in row]


def _table_of_turns(rows: Sequence[Seen]) -> Table:
    cuda = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    table = Table(title=f"calls in turn, torch {torch.__version__}{cuda}")
    headings = ("", "Inductor, ms", "farm, ms", "farm/Inductor", "Inductor again", "apart", "tokens/s", "Python calls")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        if row["how"] == "turns" and "lost" not in row:
            rates = row.get("tokens_per_second", {})
            table.add_row(
                row["name"],
                f"{row['ms']['inductor']:.3f}",
                f"{row['ms']['farm']:.3f}",
                _quartiles(row["ratios"]["farm"]),
                _quartiles(row["ratios"].get("inductor again")),
                f"{row['apart']:.1e}",
                ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()),
                ", ".join(f"{name} {count}" for name, count in row.get("python_calls", {}).items()),
            )
    return table


def _quartiles(three: Sequence[float] | None) -> str:
    return f"{three[1]:.3f} ({three[0]:.3f} to {three[2]:.3f})" if three else ""


def _table_of_fresh(rows: Sequence[Seen]) -> Table:
    table = Table(title="fresh processes, to the third call; GPU memory")
    headings = (
        "",
        "",
        "seconds",
        "of calls",
        "Dynamo",
        "of it backend",
        "importing",
        "peak MB",
        "reserved MB",
        "pool MB",
        "graphs",
        "skips",
        "programs",
        "compiled",
        "measured",
        "frames traced",
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in sorted(rows, key=lambda row: str(row["name"])):
        if row["how"] in _FRESH and "lost" not in row:
            memory = [f"{row[key] / 1e6:.1f}" if key in row else "" for key in ("peak", "reserved", "pool")]
            table.add_row(
                row["name"],
                row["how"],
                f"{row['seconds']:.2f}",
                ", ".join(f"{each:.2f}" for each in row["calls"]),
                *(f"{row['dynamo'].get(part, 0):.2f}" for part in ("whole", "backend")),
                f"{row['importing']:.2f}",
                *memory,
                str(row.get("graphs", "")),
                str(row["skips"]),
                str(len(row["started"])),
                str(row["compiled"]),
                str(row["measured"]),
                str(row["frames"]),
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
