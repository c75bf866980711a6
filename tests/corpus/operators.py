"""Takes PyTorch's own samples for its operators through the codec: `python -m tests.corpus.operators [--dynamic]
[--variants "float32" ...] [--part 1/4] [--json FILE] [NAME ...]`, in the root of the checkout.

Compiles nothing: each graph is encoded, decoded and run beside the original, and results are held against those of the
uncompiled call. `--show FILE ...` runs nothing, and prints what such runs wrote: shares, and refusals by their reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.guard_timing import guards_not_timed
from tests.worker.operators import VARIANTS, EagerFails, NoSample, Sizes, names_of_operators, try_operator

from .codec import CodecBackend, GraphReport
from .comparison import differences, look_at

_MOST_SHOWN = 12
# Their elements are whatever lay in memory.
_UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(slots=True, kw_only=True)
class Row:
    """What became of an operator in one variant.

    Attributes:
        name: of both.
        skipped: why nothing was tried; empty if something was.
        graphs: number of graphs that Dynamo captured.
        refused: why graphs are not sent, each once.
        wrong: in what results differ from uncompiled ones, and decoded graphs from the original.
        error: what Dynamo raised, or the codec.
    """

    name: str
    skipped: str = ""
    graphs: int = 0
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def is_served(self) -> bool:
        """Whether all of its graphs are sent."""
        return not self.refused and not self.error


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.operators", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an operator; all without any")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="all without any")
    parser.add_argument("--dynamic", action="store_true", help="trace each sample for all sizes")
    parser.add_argument("--samples", type=int, default=1, help="how many of each, of different sizes")
    parser.add_argument("--part", default="1/1", help="one of so many equal parts of the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line for each row, as it comes")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="run nothing; print what such files hold")
    arguments = parser.parse_args()
    rows = _read(arguments.show) if arguments.show else list(_rows(arguments))
    _print(rows)
    return 1 if any(row.wrong for row in rows) else 0


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    number, count = map(int, arguments.part.split("/"))
    sizes = Sizes(samples=arguments.samples, dynamic=arguments.dynamic)
    chosen = [name for name in names_of_operators("cpu") if _is_meant(name, arguments)]
    for name in chosen[number - 1 :: count]:
        row = _row(name, sizes)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        yield row


def _is_meant(name: str, arguments: argparse.Namespace) -> bool:
    operator, variant = name.split(" ", 1)
    return variant in arguments.variants and (not arguments.names or operator in arguments.names)


def _row(name: str, sizes: Sizes) -> Row:
    codec, row = CodecBackend(), Row(name=name)

    def compare(given: Any, expected: Any) -> None:
        row.wrong += differences(look_at("result", given), look_at("result", expected), precision=torch.float32)

    try:
        with guards_not_timed():
            try_operator(name, codec, device="cpu", sizes=sizes, on_results=compare)
    except (NoSample, EagerFails) as lacking:
        row.skipped = f"{type(lacking).__name__}: {lacking}"
    except Exception as error:  # noqa: BLE001 - a crash is a finding, and the next one has its turn
        row.error = f"{type(error).__name__}: {error}".splitlines()[0]
    row.graphs = len(codec.reports)
    row.refused = sorted({_described(report) for report in codec.reports if report.outcome != "sent"})
    row.wrong += [difference for report in codec.reports for difference in report.unfaithful]
    if name.split(" ", 1)[0] in _UNDEFINED:
        row.wrong.clear()
    return row


def _described(report: GraphReport) -> str:
    lines = report.message.strip().splitlines()
    return f"{report.outcome}, {report.reason}: {lines[-1] if lines else ''}"


def _read(files: Sequence[Path]) -> list[Row]:
    return [Row(**json.loads(line)) for file in files for line in file.read_text().splitlines()]


def _print(rows: Sequence[Row]) -> None:
    for variant in VARIANTS:
        _print_shares(variant, [row for row in rows if row.name.split(" ", 1)[1] == variant])
    _print_shares("all", rows)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for reason in [*row.refused, *filter(None, [row.error])]:
            reasons.setdefault(reason, []).append(row.name)
    for reason, names in sorted(reasons.items(), key=lambda each: -len(each[1])):
        operators = Counter(name.split(" ", 1)[0] for name in names)
        print(f"{len(names):5} {reason[:200]}: {', '.join([*operators][:_MOST_SHOWN])}")
    for row in rows:
        if row.wrong:
            print(f"WRONG {row.name}: {row.wrong[0]}")


def _print_shares(variant: str, rows: Sequence[Row]) -> None:
    tried = [row for row in rows if row.graphs or row.error]
    if tried:
        served, right = sum(row.is_served for row in tried), sum(not row.wrong for row in tried)
        print(f"{variant:20} {len(tried):5} tried, {served:5} served ({served / len(tried):.1%}), {right:5} right")


if __name__ == "__main__":
    sys.exit(main())
