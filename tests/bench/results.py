"""Prints what `compilefarm bench --json` wrote as the tables of RESULTS.md: `python tests/bench/results.py FILE...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compilefarm.benchmarks.points import Point
from compilefarm.benchmarks.report import Measured, Report, read_report
from compilefarm.benchmarks.tables import Column, point_columns, timing_columns, title, work_columns


def main(paths: Sequence[str]) -> None:
    for path in map(Path, paths):
        content: dict[str, Any] = json.loads(path.read_text())
        if "points" in content:
            show_points([Point(**point) for point in content["points"]], content["machine"])
        else:
            show_report(read_report(path))


def show_report(report: Report) -> None:
    print(f"{machine_words(report.machine)}, device {report.device}, mode {report.mode or 'default'}\n")
    for model in report.models():
        ways = report.of_model(model)
        rounds = sorted({len(way.results) for way in ways if way.results})
        print(f"### {title(model, ways)}\n\nRounds: {', '.join(map(str, rounds))}\n")
        show_ways(ways, timing_columns(ways))
        show_ways(ways, work_columns())
        for way in ways:
            if way.reason:
                print(f"- {way.way}: none, or not all rounds: `{way.reason}`")
        print()


def show_ways(ways: Sequence[Measured], columns: Sequence[Column]) -> None:
    rows = [
        [way.way, *(cell(way, typical) for _, cell in columns)]
        for way in ways
        if (typical := way.typical()) is not None
    ]
    show_table(["way", *(heading for heading, _ in columns)], rows)


def show_points(points: Sequence[Point], machine: dict[str, str]) -> None:
    print(f"{machine_words(machine)}\n")
    for axis in dict.fromkeys(point.axis for point in points):
        known = [point for point in points if point.axis == axis]
        headings, rows = point_columns(known)
        show_table([axis, *headings], rows)
        for point in known:
            if point.reason:
                print(f"- {point.size}: none: `{point.reason}`")


def machine_words(machine: dict[str, str]) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in machine.items())


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # A column in which no row has anything says nothing.
    present = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    for line in (headings, ["---"] + ["---:"] * (len(headings) - 1), *rows):
        print(f"| {' | '.join(line[number] for number in present)} |")
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
