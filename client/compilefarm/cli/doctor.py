"""`compilefarm doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Column, Table

from compilefarm.cli.bytecode_checks import check_bytecode
from compilefarm.cli.checks import Check, State, failed, ok
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
    option(
        "--ray-address",
        metavar="HOST:PORT",
        help="check the Ray cluster that has its head there, as for `serve --ray-address`",
    )
    option("--config", type=Path, metavar="FILE", help="check the Ray cluster and environments of this file of `serve`")
    option("--json", action="store_true", help="print the checks as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks, and prints what was found. Returns 1 if anything failed."""
    checks: list[Check] = []
    ray = arguments.ray_address or arguments.config
    if arguments.store or not (arguments.address or ray):
        checks += check_machine()
    if not ray:
        # A pod imports torch as well as a worker does.
        checks.append(check_bytecode())
    if arguments.store:
        checks += _check_store(arguments.store)
    if ray:
        checks += _check_ray(arguments.ray_address, file=arguments.config)
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


def _check_ray(address: str | None, *, file: Path | None) -> list[Check]:
    # A pod that asks about its farm has neither gateway nor Ray.
    from compilefarm.cli.ray_checks import check_ray
    from compilefarm.serving.config import config_of
    from compilefarm.serving.flags import UnusableFile

    try:
        config = config_of(file)
    except UnusableFile as error:
        return [failed("ray: configuration", str(error), remedy="mend the file")]
    address = address or config.ray_address
    if address is None:
        return [ok("ray: configuration", "it names no ray-address: `serve` uses no cluster")]
    return check_ray(replace(config, ray_address=address))


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
