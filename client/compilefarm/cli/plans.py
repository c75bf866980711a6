"""Plans and results of prewarming, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from compilefarm.cli.words import key_words, seconds_words
from compilefarm.client.package_plans import PlannedPackage
from compilefarm.client.plans import Plan, PlannedGraph, coverage_of, covers, package_percent
from compilefarm.client.prewarming import Report
from compilefarm.core.printable import printable
from compilefarm.core.recorded_packages import Unpublished
from compilefarm.core.recordings import RecordedBypass

_STANDINGS = {"hit": "stored", "miss": "to be compiled", "under way": "being compiled", "cannot": "cannot be served"}

_PACKAGES = {
    "stored": "stored",
    "published": "published",
    "missing": "not stored",
    "cannot": "not kept",
    "left out": "left out, since they hold for the environment and the mode of the recording",
}


def show_plan(plan: Plan, to: Console) -> None:
    """Prints a plan for people."""
    _show_graphs(plan.graphs, to)
    _show_bypasses(plan.bypasses, to)
    _show_packages(plan.packages, plan.unpublished, to)
    facts = Table(show_header=False, box=None)
    for standing, words in _STANDINGS.items():
        graphs = [graph for graph in plan.graphs if graph.standing == standing]
        if graphs:
            facts.add_row(words, f"{len(graphs)} graphs")
    if plan.bypasses:
        facts.add_row("never sent to a farm", f"{len(plan.bypasses)} graphs")
    if plan.missing():
        spent, until = plan.worker_seconds(), plan.estimated_seconds()
        facts.add_row("estimated", f"{minutes_words(spent)} of workers, done after {minutes_words(until)}")
    to.print(facts)


def show_report(report: Report, to: Console) -> None:
    """Prints the result of prewarming for people."""
    failed = [each for each in report.failed if each.graph.standing != "cannot"]
    _show_graphs([graph for graph in report.plan.graphs if graph.standing == "cannot"], to)
    for each in failed:
        what = f"{each.graph.file}, key {key_words(each.graph.key)}, failed"
        to.print(f"{what}, {each.reason}: {each.problem}", markup=False, soft_wrap=True)
    compiled, hits = report.count("compiled"), report.count("hit")
    served = len(report.served) - len(report.failed)
    to.print(
        f"{served} of {len(report.plan.graphs)} graphs are served: {compiled} compiled,"
        f" {hits} were stored, {report.count('joined')} joined another request, in {minutes_words(report.seconds)};"
        f" {len(report.failed)} are not"
    )
    if report.plan.bypasses:
        to.print(f"{len(report.plan.bypasses)} more are never sent to a farm; pods compile them")
    _show_packages(report.packages, report.plan.unpublished, to)


def show_check(plan: Plan, to: Console, *, threshold_percent: float) -> None:
    """Prints for people how much of a recording is stored."""
    _show_graphs([graph for graph in plan.graphs if graph.standing != "hit"], to)
    _show_bypasses(plan.bypasses, to)
    coverage = coverage_of(plan)
    has_packages = plan.packages or plan.unpublished
    packages = f", and {_percent_words(package_percent(plan))} of the packages" if has_packages else ""
    to.print(
        f"{_percent_words(coverage.percent)} of the graphs are stored: {coverage.stored} of {coverage.graphs}"
        f"{packages}; {'enough' if covers(plan, threshold_percent) else 'too little'},"
        f" {threshold_percent:g} % are wanted"
    )
    _show_packages(plan.packages, plan.unpublished, to)
    saved, unsaved = minutes_words(coverage.saved_seconds), minutes_words(coverage.unsaved_seconds)
    to.print(f"a run of the workload saves {saved} of compiling; about {unsaved} more are not stored")


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    standings = Counter[str](graph.standing for graph in plan.graphs)
    return {
        "graphs": [_graph_data(graph) for graph in plan.graphs],
        "bypasses": [asdict(bypass) for bypass in plan.bypasses],
        "packages": _packages_data(plan.packages),
        "unpublished": [asdict(each) for each in plan.unpublished],
        "totals": {standing.replace(" ", "_"): standings[standing] for standing in _STANDINGS}
        | {"bypasses": len(plan.bypasses)},
        "worker_seconds": plan.worker_seconds(),
        "estimated_seconds": plan.estimated_seconds(),
    }


def report_data(report: Report) -> dict[str, Any]:
    """The result of prewarming as JSON."""
    return {
        "graphs": [
            _graph_data(each.graph) | {"outcome": each.outcome, "reason": each.reason, "problem": each.problem}
            for each in report.served
        ],
        "bypasses": [asdict(bypass) for bypass in report.plan.bypasses],
        "packages": _packages_data(report.packages),
        "unpublished": [asdict(each) for each in report.plan.unpublished],
        "totals": {
            **{outcome: report.count(outcome) for outcome in ("hit", "compiled", "joined", "failed")},
            "bypasses": len(report.plan.bypasses),
        },
        "seconds": report.seconds,
    }


def check_data(plan: Plan, *, threshold_percent: float) -> dict[str, Any]:
    """How much of a recording is stored, as JSON."""
    coverage = coverage_of(plan)
    return {
        **asdict(coverage),
        "percent": coverage.percent,
        "threshold_percent": threshold_percent,
        "enough": covers(plan, threshold_percent),
        "not_stored": [_graph_data(graph) for graph in plan.graphs if graph.standing != "hit"],
        "bypasses": [asdict(bypass) for bypass in plan.bypasses],
        "packages": _packages_data(plan.packages),
        "unpublished": [asdict(each) for each in plan.unpublished],
    }


def _graph_data(graph: PlannedGraph) -> dict[str, Any]:
    shown = ("file", "name", "nodes", "count", "key", "standing", "reason", "problem", "compile_seconds")
    return {name: getattr(graph, name) for name in shown}


def _packages_data(packages: Iterable[PlannedPackage]) -> list[dict[str, Any]]:
    return [
        {
            "file": each.recorded.file,
            "function": each.recorded.function,
            "key": each.recorded.package.key,
            "standing": each.standing,
            "reason": each.reason,
            "problem": each.problem,
        }
        for each in packages
    ]


def minutes_words(seconds: float) -> str:
    """A duration in a suitable unit: "4.20 s", "3.5 min", "2.1 h"."""
    if seconds < 120:
        return seconds_words(seconds) if seconds else "0 s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _show_graphs(graphs: Sequence[PlannedGraph], to: Console) -> None:
    if not graphs:
        return
    table = Table("graph", "name", "nodes", "asked for", "key", "standing", "takes")
    for graph in graphs:
        key, standing = key_words(graph.key), _STANDINGS[graph.standing]
        takes = "" if graph.standing == "cannot" else minutes_words(graph.compile_seconds)
        about = "about " if graph.standing in ("miss", "under way") else ""
        table.add_row(graph.file, graph.name, str(graph.nodes), f"{graph.count}x", key, standing, about + takes)
    to.print(table)
    problems = Counter((graph.reason, graph.problem) for graph in graphs if graph.standing == "cannot")
    for (reason, problem), count in problems.items():
        to.print(f"{count} cannot be served, {reason}: {problem}", markup=False, soft_wrap=True)
    awaited = Counter(graph.problem for graph in graphs if graph.standing == "miss" and graph.problem)
    for problem, count in awaited.items():
        to.print(f"{count} would wait for {printable(problem)}", markup=False, soft_wrap=True)


def _show_bypasses(bypasses: Iterable[RecordedBypass], to: Console) -> None:
    for bypass in bypasses:
        name = f"graph {bypass.first} {bypass.name}".strip()
        what = f"{name} ({bypass.nodes} nodes, {bypass.count}x) is never sent to a farm"
        to.print(f"{what}, {bypass.reason}: {bypass.message}", markup=False, soft_wrap=True)


def _show_packages(packages: Sequence[PlannedPackage], unpublished: Sequence[Unpublished], to: Console) -> None:
    """One line for each function whose package the farm does not keep, or that has none, and one for all."""
    for function in unpublished:
        to.print(
            printable(f"{function.function} is traced by every pod: {function.reason}"), markup=False, soft_wrap=True
        )
    for each in packages:
        if each.standing == "cannot":
            what = f"{each.recorded.file}, the package of {each.recorded.function}, is not kept"
            to.print(printable(f"{what}, {each.reason}: {each.problem}"), markup=False, soft_wrap=True)
    standings = Counter[str](each.standing for each in packages)
    said = ", ".join(f"{standings[standing]} {words}" for standing, words in _PACKAGES.items() if standings[standing])
    if packages:
        to.print(f"{len(packages)} packages of Dynamo: {said}", soft_wrap=True)


def _percent_words(percent: float) -> str:
    # 99.96 are not 100.
    return f"{int(percent * 10) / 10:g} %"
