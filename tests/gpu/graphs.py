"""Times programs of a farm under CUDA graphs beside Inductor's: `python -m tests.gpu.graphs [NAME ...]`, in the root of
the checkout.

Starts a farm with the GPU. For each name one process calls the farm's program and Inductor's in turn; fresh ones, a
pod without any compiler and with empty caches and one with Inductor's warm cache, go from a model to the third call,
which is the first that replays. Prints tables.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tests.farm.serving import bare_environment, serve

from .graph_cases import CASES, GENERATE

_ROOT = Path(__file__).parent.parent.parent
Seen = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.graphs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join((*CASES, GENERATE))}")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mode", default="reduce-overhead")
    parser.add_argument("--seconds", type=float, default=470.0, help="after these, no further process is started")
    arguments = parser.parse_args()
    names = arguments.names or [GENERATE, *CASES]
    with tempfile.TemporaryDirectory() as place:
        rows = _rows(arguments, Path(place), names)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in (_table_of_turns(rows), _table_of_fresh(rows)):
        console.print(table)
    lost = [row for row in rows if "lost" in row]
    for row in lost:
        console.print(f"{row['how']}, {row['name']}: {row['lost']}", markup=False, highlight=False)
    return 1 if lost else 0


def _rows(arguments: argparse.Namespace, folder: Path, names: Sequence[str]) -> list[Seen]:
    until = time.monotonic() + arguments.seconds
    local = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "local"),
        "TRITON_CACHE_DIR": str(folder / "local" / "triton"),
    }
    rows: list[Seen] = []
    with serve(folder, device=arguments.device.partition(":")[0]) as farm:
        both = os.environ | local | {"COMPILEFARM_ADDRESS": farm.address}
        for name in names:
            bare = _bare(folder / f"pod, {name}", farm.address)
            # Calls in turn leave an artifact in the farm, and Inductor's caches.
            for how, environment in (("turns", both), ("inductor", os.environ | local), ("farm", bare)):
                if time.monotonic() < until:
                    rows.append(_run(how, name, arguments, environment, until=until))
                    print(json.dumps(rows[-1]), flush=True)
    return rows


def _bare(caches: Path, address: str) -> Mapping[str, str]:
    caches.mkdir()
    return bare_environment(caches, address) | {"COMPILEFARM_SELF_CHECK": "0"}


def _run(how: str, name: str, arguments: argparse.Namespace, environment: Mapping[str, str], *, until: float) -> Seen:
    """What a process says, or what became of it."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-W", "ignore", "-m", "tests.gpu.graph_pod", how, name),
                *("--device", arguments.device, "--mode", arguments.mode),
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


def _table_of_turns(rows: Sequence[Seen]) -> Table:
    cuda = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    table = Table(title=f"calls in turn, torch {torch.__version__}{cuda}")
    for heading in ("", "Inductor, ms", "farm, ms", "farm/Inductor", "Inductor again", "apart", "tokens/s"):
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
        "peak MB",
        "reserved MB",
        "pool MB",
        "graphs",
        "skips",
        "programs",
        "compiled",
        "measured",
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in sorted(rows, key=lambda row: str(row["name"])):
        if row["how"] in ("farm", "inductor") and "lost" not in row:
            memory = [f"{row[key] / 1e6:.1f}" if key in row else "" for key in ("peak", "reserved", "pool")]
            table.add_row(
                row["name"],
                row["how"],
                f"{row['seconds']:.2f}",
                *memory,
                str(row.get("graphs", "")),
                str(row["skips"]),
                str(len(row["started"])),
                str(row["compiled"]),
                str(row["measured"]),
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
