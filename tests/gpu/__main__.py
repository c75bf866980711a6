"""All that only a GPU shows, in one go: `python -m tests.gpu [NAME ...]`, in the root of the checkout.

Starts a farm with the GPU. A first pod has it compile every workload. Then pods without any compiler, a fresh process
with empty caches for each GPU of the machine, ask for the same: everything has to be found, nothing may be compiled,
measured or started, and results have to be those of eager; no artifact may hold more than machine code. Prints a
table; the exit status is 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.farm.serving import ServedFarm, bare_environment, serve

from .contents import find_representations
from .workloads import WORKLOADS

_ROOT = Path(__file__).parent.parent.parent
# Whose operators workloads call.
_MODULES = ("tests.gpu.operators",)
# As a share of the largest value: bfloat16 throughout, and TF32 or half precision in places.
_TOLERANCE = 5e-2
# What pods may fetch for a decoder; every variant of its kernels with every step to machine code takes 100 times that.
_DECODERS = ("llama", "llama, 8 layers, bfloat16")
_MOST_BYTES_OF_DECODER = 500_000
_COLUMNS = (
    "pod", "workload", "graphs", "seconds", "off eager", "of", "programs", "compiled", "measured", "MB", "right",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(WORKLOADS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: what needs no GPU, to try it")
    arguments = parser.parse_args()
    names, device = arguments.names or list(WORKLOADS), arguments.device
    if unknown := sorted(set(names) - set(WORKLOADS)):
        parser.error(f"no workload is called {' or '.join(unknown)}")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("this machine has no GPU that torch can use")
    console = Console(width=None if sys.stdout.isatty() else 200)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with serve(folder, ("--allow-triton-kernels",), device=device, modules=_MODULES, module_folder=_ROOT) as farm:
            rows = _rows(farm, folder, names, _devices(device))
        farm_log = farm.log.read_text()
        # The farm has ended: nobody else uses its store.
        representations = asyncio.run(find_representations(folder / "store"))
    console.print(_table(rows, device))
    problems = [(row, problem) for row in rows if (problem := _problem(row))]
    for row, problem in problems:
        console.print(f"{row['pod']}, {row['workload']}: {problem}", markup=False, highlight=False)
    for found in representations:
        console.print(found, markup=False, highlight=False)
    if device == "cuda" and torch.cuda.device_count() == 1:
        console.print("moving to another GPU: not tried, this machine has one")
    if problems:
        console.rule("the farm's log")
        console.print(farm_log, markup=False, highlight=False)
    return 1 if problems or representations else 0


def _devices(device: str) -> list[str]:
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] if device == "cuda" else [device]


def _rows(farm: ServedFarm, folder: Path, names: list[str], devices: list[str]) -> list[dict[str, Any]]:
    expected = folder / "expected.pt"
    address = {"COMPILEFARM_ADDRESS": farm.address}
    rows = _run_pod("first", devices[0], expected, names, os.environ | address)
    for number, device in enumerate(devices):
        caches = folder / f"pod{number}"
        caches.mkdir()
        # Their results are compared here. To find out whether it can compile the kernels of a user, which its own
        # comparison runs, a pod starts the compiler.
        environment = bare_environment(caches, farm.address) | {"COMPILEFARM_SELF_CHECK": "0"}
        rows += _run_pod(f"bare, {device}", device, expected, names, environment)
    return rows


def _run_pod(
    pod: str, device: str, expected: Path, names: list[str], environment: dict[str, str]
) -> list[dict[str, Any]]:
    """What a pod says of its workloads, which is printed as it comes."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.gpu.pod", device, str(expected), *names],
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))},
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                rows.append({"pod": pod, **json.loads(line)})
                print(f"{pod}: {rows[-1]['workload']} {rows[-1]['total_seconds']:.2f} s", flush=True)
        process.wait()
        errors.seek(0)
        said = errors.read()[-2000:]
    missing = [name for name in names if name not in {row["workload"] for row in rows}]
    return rows + [{"pod": pod, "workload": name, "lost": said} for name in missing]


def _problem(row: dict[str, Any]) -> str:
    """What is wrong with a row; nothing, for most."""
    if "lost" in row:
        return f"the pod ended before it: {row['lost']}"
    if row["error"]:
        return str(row["error"])
    allowed = {"compiled", "hit"} if row["pod"] == "first" else {"hit"}
    if not row["outcomes"] or not set(row["outcomes"]) <= allowed:
        return f"{', '.join(row['outcomes']) or 'no graph'}: {'; '.join(row['messages'])}"
    if not row["difference"] <= _TOLERANCE * row["magnitude"]:
        return f"differs from eager by {row['difference']:.3g} where values reach {row['magnitude']:.3g}"
    if row["pod"] == "first":
        return ""
    if row["started"]:
        return f"started {'; '.join(row['started'])}"
    if row["compiled_kernels"] or row["benchmarks"]:
        return f"compiled {row['compiled_kernels']} kernels, measured {row['benchmarks']}"
    if row["workload"] in _DECODERS and row["bytes_fetched"] > _MOST_BYTES_OF_DECODER:
        return f"fetched {row['bytes_fetched']} bytes, {_MOST_BYTES_OF_DECODER} are allowed"
    return ""


def _table(rows: list[dict[str, Any]], device: str) -> Table:
    machine = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if device == "cuda" else "CPU"
    table = Table(title=f"torch {torch.__version__}, {machine}")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("pod", "workload", "graphs", "right") else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    right = "[red]no[/]" if _problem(row) else "yes"
    if "lost" in row:
        return row["pod"], row["workload"], *[""] * (len(_COLUMNS) - 3), right
    return (
        row["pod"],
        row["workload"],
        escape(" ".join(row["outcomes"])),
        f"{row['total_seconds']:.2f}",
        f"{row['difference']:.1e}",
        f"{row['magnitude']:.1e}",
        str(len(row["started"])),
        str(row["compiled_kernels"]),
        str(row["benchmarks"]),
        f"{row['bytes_fetched'] / 1e6:.2f}",
        right,
    )


if __name__ == "__main__":
    sys.exit(main())
