"""`compilefarm prewarm plan|run|check`: has a farm compile what a workload asked for, before its pods start."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from compilefarm.cli.farm import add_address, connection
from compilefarm.cli.plans import check_data, plan_data, report_data, show_check, show_plan, show_report
from compilefarm.cli.progress import showing_progress
from compilefarm.cli.traced_models import CannotTrace, add_model_arguments, trace_model
from compilefarm.cli.words import console
from compilefarm.client.config import TENANT
from compilefarm.client.defaults import DEFAULT_PARALLEL
from compilefarm.client.planner import Planner
from compilefarm.client.plans import covers
from compilefarm.client.prewarming import Prewarming
from compilefarm.core.errors import UnusableRecording, UnusableRequestFile
from compilefarm.core.printable import printable
from compilefarm.core.recordings import Recording, read_recording
from compilefarm.serving.numbers import percentage, positive

_Run = Callable[[argparse.Namespace], int]
# The exit status of argparse for wrong arguments.
_WRONG_ARGUMENTS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)

    def step(name: str, run: _Run, text: str) -> argparse.ArgumentParser:
        sub = steps.add_parser(name, help=text, description=text)
        _add_target(sub)
        sub.set_defaults(run_step=run)
        return sub

    plan = step(
        "plan",
        _plan,
        "show which requests of a recording are stored, would be compiled, or cannot be served; compiles nothing",
    )
    run_all = step(
        "run", _run, "have a farm compile what is not stored; exit status 0: everything is served, 1: something is not"
    )
    model = step(
        "model", _model, "trace a model without its weights and without a GPU, and have a farm compile its graphs"
    )
    check = step("check", _check, "show how much of a recording is stored; exit status 0: enough, 1: too little")
    for of_recording in (plan, run_all, check):
        _add_recording(of_recording)
    add_model_arguments(model)
    for of_requests in (run_all, model):
        _add_parallel(of_requests)
    _add_threshold(check)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environment",
        metavar="NAME",
        help="make the requests for this environment of the farm instead (`compilefarm workers` lists them)",
    )
    parser.add_argument("--mode", help="make the requests for this mode= of torch.compile instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_address(parser)


def _add_recording(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recording", metavar="RECORDING", type=Path, help="folder of the recording, as COMPILEFARM_RECORD named it"
    )


def _add_parallel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parallel",
        type=positive,
        default=DEFAULT_PARALLEL,
        metavar="N",
        help="number of requests at a time; default: %(default)s",
    )


def _add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        type=percentage,
        default=100.0,
        metavar="PERCENT",
        help="share of the graphs, and of the packages of Dynamo, that has to be stored; default: %(default)g",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the step that was named. Returns the exit status."""
    step: _Run = arguments.run_step
    try:
        return step(arguments)
    except (CannotTrace, UnusableRecording, UnusableRequestFile) as error:
        print(f"compilefarm prewarm: {printable(str(error))}", file=sys.stderr)
        return _WRONG_ARGUMENTS


def _plan(arguments: argparse.Namespace) -> int:
    recording = read_recording(arguments.recording)
    with connection(arguments) as connected:
        plan = Planner(connected, environment=arguments.environment, mode=arguments.mode).plan(recording)
    if arguments.json:
        print(json.dumps(plan_data(plan), indent=2))
    else:
        show_plan(plan, console())
    return 0


def _run(arguments: argparse.Namespace) -> int:
    return _prewarm(read_recording(arguments.recording), arguments)


def _model(arguments: argparse.Namespace) -> int:
    return _prewarm(trace_model(arguments), arguments)


def _prewarm(recording: Recording, arguments: argparse.Namespace) -> int:
    """Has what a farm lacks of a recording compiled, and shows the progress. Returns the exit status."""
    with connection(arguments) as connected:
        plan = Planner(connected, environment=arguments.environment, mode=arguments.mode).plan(recording)
        prewarming = Prewarming(connected, tenant=os.environ.get(TENANT, ""), parallel=arguments.parallel)
        try:
            with showing_progress(plan) as on_served:
                report = prewarming.run(plan, on_served=on_served)
        except KeyboardInterrupt:
            print("ended; what is compiled stays, run it again to go on", file=sys.stderr)
            raise
    if arguments.json:
        print(json.dumps(report_data(report), indent=2))
    else:
        show_report(report, console())
    return 1 if report.failed or report.failed_packages else 0


def _check(arguments: argparse.Namespace) -> int:
    recording = read_recording(arguments.recording)
    with connection(arguments) as connected:
        plan = Planner(connected, environment=arguments.environment, mode=arguments.mode).plan(recording)
    if arguments.json:
        print(json.dumps(check_data(plan, threshold_percent=arguments.threshold), indent=2))
    else:
        show_check(plan, console(), threshold_percent=arguments.threshold)
    return 0 if covers(plan, arguments.threshold) else 1
