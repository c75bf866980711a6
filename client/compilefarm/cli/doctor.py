"""`compilefarm doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Column, Table

from compilefarm.cli.checks import Check, State
from compilefarm.cli.farm_checks import check_farm
from compilefarm.cli.machine_checks import check_machine
from compilefarm.cli.words import console
from compilefarm.client.config import ADDRESS, ConfigurationError, read_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    option = parser.add_argument
    option("--store", metavar="STORE", help="check this store, named as for `serve --store`")
    option(
        "--address",
        metavar="HOST:PORT",
        help=f"check this farm; default: ${ADDRESS}. Given without --store, this machine need not be able to compile",
    )
    option("--json", action="store_true", help="print the checks as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks, and prints what was found. Returns 1 if anything failed."""
    checks: list[Check] = []
    if arguments.store or not arguments.address:
        checks += check_machine()
    if arguments.store:
        checks += _check_store(arguments.store)
    address = arguments.address or _address_of_environment()
    if address:
        checks += check_farm(address)
    if arguments.json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}))
    else:
        _show(checks)
    return 1 if any(check.state is State.FAILED for check in checks) else 0


def _check_store(location: str) -> list[Check]:
    # A pod that asks about its farm has no store installed.
    from compilefarm.cli.store_checks import check_store

    return check_store(location)


def _address_of_environment() -> str:
    try:
        return read_address(os.environ)
    except ConfigurationError:
        return ""


def _show(checks: Sequence[Check]) -> None:
    table = Table("", "", Column(overflow="fold"), show_header=False, box=None)
    for check in checks:
        table.add_row(check.state, check.name, check.finding)
        if check.remedy:
            table.add_row("", "", f"→ {check.remedy}")
    console().print(table)
