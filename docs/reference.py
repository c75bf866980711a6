"""Writes docs/reference.md from the code: `python docs/reference.py`, and with --check only says whether it is current.

Each sentence is taken from the place that defines the thing: metadata of settings, docstrings of errors, registries of
reasons, comments of the protocol, descriptions of metrics and options.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from compilefarm.cli.main import COMMANDS
from compilefarm.client import planner
from compilefarm.client.config import SETTINGS
from compilefarm.client.records import OUTCOMES
from compilefarm.core import retargeting
from compilefarm.core.errors import BY_REASON
from compilefarm.graph import bypass
from compilefarm.service.clock import SystemClock
from compilefarm.service.counters import Counters
from compilefarm.service.job_metrics import JobMetrics
from compilefarm.service.state_metrics import StateCollector
from compilefarm.serving.config import ServeConfig
from compilefarm.serving.flags import Flag, flags_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
_PROTOCOL = ROOT / "proto" / "compilefarm" / "v1"
_VALUE = re.compile(r"((?: *//.*\n)+) *([A-Z_]+) = \d+;")

_INTRODUCTION = """# Reference

Generated from the code by `python docs/reference.py`; do not edit. How to use what is listed here:
[in a pod](pods.md), [operating a farm](operating.md), [prewarming](prewarming.md).

- [Settings of a pod](#settings-of-a-pod)
- [Settings of a farm](#settings-of-a-farm)
- [Commands](#commands)
- [Outcomes of a graph](#outcomes-of-a-graph)
- [Reasons](#reasons): [errors](#errors), [bypasses](#bypasses), [failed compiles](#failed-compiles),
  [plans](#plans)
- [Metrics](#metrics)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or with --check returns 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not current")
    parser.add_argument("--page", type=Path, default=PAGE, help="the file; default: docs/reference.md")
    given = parser.parse_args(arguments)
    page = render()
    if not given.check:
        given.page.write_text(page, encoding="utf-8")
        return 0
    if given.page.is_file() and given.page.read_text(encoding="utf-8") == page:
        return 0
    print(f"{given.page} is not current; run: python docs/reference.py")
    return 1


def render() -> str:
    """Returns the page."""
    sections = (pod_settings, farm_settings, commands, outcomes, reasons, metrics)
    return "\n".join([_INTRODUCTION, *("\n".join(section()) + "\n" for section in sections)]).rstrip() + "\n"


def pod_settings() -> Iterator[str]:
    """The arguments of `Farm` and the variables of a pod."""
    yield "## Settings of a pod\n"
    yield "An argument of `compilefarm.client.Farm` comes before its environment variable, and that before the default."
    yield '`torch.compile(model, backend="compilefarm")` reads the variables alone.\n'
    rows = [
        (code(each.name), code(each.variable), code(default_of(each.default)), each.meaning)
        for each in SETTINGS
        if each.is_argument
    ]
    yield from table(("argument", "variable", "default", "meaning"), rows)
    yield "\nOf a process, and no argument:\n"
    further = [each for each in SETTINGS if each.variable and not each.is_argument]
    of_process = [(code(each.variable), code(default_of(each.default)), each.meaning) for each in further]
    yield from table(("variable", "default", "meaning"), of_process)


def default_of(default: object) -> str:
    """The default of a setting of a pod as an environment variable would say it."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "" if default in (None, ()) else str(default).removesuffix(".0")


def farm_settings() -> Iterator[str]:
    """The flags of `compilefarm serve`."""
    yield "## Settings of a farm\n"
    yield "Flags of `compilefarm serve`, and names in the TOML file of `--config FILE`, without the dashes in front:"
    yield '`queue-limit = 100`, `read-only = true`, `import = ["my_ops"]`. A flag comes before the file. Secrets are'
    yield "paths of files, never values.\n"
    groups: dict[str, list[Flag]] = {}
    for each in flags_of(ServeConfig):
        groups.setdefault(each.group, []).append(each)
    for group, flags in groups.items():
        yield f"### {group[0].upper()}{group[1:]}\n"
        rows = [(_written(each), _form(each), each.default_text, sentence(each.meaning)) for each in flags]
        yield from table(("flag", "value", "default", "meaning"), rows)


def _written(each: Flag) -> str:
    # Tables are written in the file alone.
    return code(each.name if each.kind == "tables" else f"--{each.name}")


def _form(each: Flag) -> str:
    return ", ".join(map(code, each.choices)) or each.metavar


def commands() -> Iterator[str]:
    """The commands with their arguments."""
    yield "## Commands\n"
    for name, (module, text) in COMMANDS.items():
        yield f"### compilefarm {name}\n"
        yield sentence(text) + "\n"
        if name == "serve":
            yield "Its flags are [above](#settings-of-a-farm).\n"
            continue
        parser = argparse.ArgumentParser(prog=f"compilefarm {name}")
        importlib.import_module(module).add_arguments(parser)
        yield from command(parser)


def command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The arguments of a command, and the commands below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below.update(action.choices)
        elif not isinstance(action, argparse._HelpAction):
            rows.append((code(_invocation(action)), sentence(_help(action, parser))))
    if rows:
        yield from table(("argument", "meaning"), rows)
    for name, child in below.items():
        yield f"#### {child.prog.removesuffix(name)}{name}\n"
        yield sentence(child.description or "") + "\n"
        yield from command(child)


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else "|".join(map(str, action.choices or [action.dest.upper()])))
    value = " ".join(value) if isinstance(value, tuple) else value
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def outcomes() -> Iterator[str]:
    """What may become of a graph."""
    yield "## Outcomes of a graph\n"
    yield "`outcome` in `compilefarm.client.stats()`, and a label of `compilefarm_client_graphs_total`.\n"
    yield from table(("outcome", "meaning"), [(code(outcome), text) for outcome, text in OUTCOMES.items()])


def reasons() -> Iterator[str]:
    """The words that say why something did not happen."""
    yield "## Reasons\n"
    yield "`reason` in `stats()`, in reports of `compilefarm prewarm --json` and in metrics: why there is no program of"
    yield "the farm. Log lines say in words what the reason names.\n"
    yield "### Errors\n"
    yield "A service sends the reason beside the gRPC status. Errors without a status arise in the client alone.\n"
    errors = [
        (code(reason), "" if error.status == "INTERNAL" and reason != "internal" else code(error.status), _first(error))
        for reason, error in BY_REASON.items()
        if reason != "farm_error"
    ]
    errors.append(
        (code("defect"), "", "A defect of the client; the log has the error, and the graph runs without the farm.")
    )
    yield from table(("reason", "status", "meaning"), errors)
    yield "### Bypasses\n"
    yield "Graphs that are never sent to a farm: something about them cannot be sent faithfully.\n"
    yield from table(("reason", "meaning"), [(code(reason), text) for reason, text in bypass.REASONS.items()])
    yield "### Failed compiles\n"
    yield "Compiles that gave no artifact.\n"
    yield from table(("reason", "meaning"), enum_rows("job.proto", "FAILURE_KIND_"))
    yield "### Plans\n"
    yield "Requests of a recording that cannot be served, in `compilefarm prewarm plan`, beside the errors above.\n"
    planned = sorted({**retargeting.REASONS, **planner.REASONS}.items())
    yield from table(("reason", "meaning"), [(code(reason), text) for reason, text in planned])


def enum_rows(file: str, prefix: str) -> list[tuple[str, str]]:
    """The values of an enum of the protocol that are sent, in words, with their comments."""
    found = _VALUE.findall((_PROTOCOL / file).read_text(encoding="utf-8"))
    values = [(name.removeprefix(prefix).lower(), comment) for comment, name in found if name.startswith(prefix)]
    return [
        (code(name), " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines()).strip())
        for name, comment in values
        if name != "unspecified"
    ]


def metrics() -> Iterator[str]:
    """The metrics of a gateway."""
    yield "## Metrics\n"
    yield "Served by `compilefarm serve --metrics-listen HOST:PORT` at `/metrics`, for Prometheus. Counters begin at"
    yield "zero when the service starts.\n"
    rows = sorted([*_metrics_of_state(), *_metrics_of_jobs()])
    yield from table(("metric", "type", "labels", "meaning"), rows)


def _metrics_of_state() -> Iterator[tuple[str, ...]]:
    # Only names and descriptions are read: what the gateway is doing does not matter.
    quarantine = SimpleNamespace(count=AsyncMock(return_value=0))
    sources: Any = MagicMock(counters=Counters(), store=SimpleNamespace(usage=AsyncMock()), quarantine=quarantine)
    for family in asyncio.run(StateCollector(sources, loop=MagicMock())._read()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield code(name), family.type, ", ".join(map(code, family._labelnames)), sentence(family.documentation)  # type: ignore[attr-defined]


def _metrics_of_jobs() -> Iterator[tuple[str, ...]]:
    for metric in vars(JobMetrics(CollectorRegistry(), clock=SystemClock())).values():
        if isinstance(metric, MetricWrapperBase):
            labels = ", ".join(map(code, metric._labelnames))
            yield code(metric._name), str(metric._type), labels, sentence(metric._documentation)


def _first(thing: object) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return text and f"{text[0].upper()}{text[1:].rstrip('.')}."


def code(text: str) -> str:
    """The text as code."""
    return text and f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
