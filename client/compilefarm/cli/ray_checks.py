"""Checks whether a Ray cluster can have the workers that `serve` would ask it for."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator, Mapping

from compilefarm.cli.checks import Check, failed, ok, warning
from compilefarm.core.pool import DeclaredEnvironment
from compilefarm.serving.config import ServeConfig


def check_ray(config: ServeConfig) -> list[Check]:
    """Checks the cluster that settings name, and the environments that they declare for it.

    Args:
        config: of `serve`; it names the address of a cluster.
    """
    if importlib.util.find_spec("ray") is None:
        return [failed("ray", "it is not installed", remedy="pip install 'compilefarm[ray]'")]
    from compilefarm.cluster.connection import UnusableCluster, connect, disconnect

    try:
        connect(config.ray_address)
    except UnusableCluster as error:
        return [failed("ray", error.finding, remedy=error.remedy)]
    try:
        return list(_checks(config))
    finally:
        disconnect()


def _checks(config: ServeConfig) -> Iterator[Check]:
    from compilefarm.cluster.connection import node_resources, ray_version
    from compilefarm.serving.ray_pools import declared_slots

    nodes = node_resources()
    finding = f"{len(nodes)} nodes at {config.ray_address}, Ray {ray_version()}, Python {platform.python_version()}"
    yield ok("ray", finding)
    wanted = {slot.environment_name: slot.resources for slot in declared_slots(config, nodes)}
    for environment in config.environments:
        yield _check_place(environment.name, wanted[environment.name])
        yield _check_interpreter(environment, wanted[environment.name])


def _check_place(environment_name: str, wanted: Mapping[str, float]) -> Check:
    from compilefarm.cluster.connection import node_resources
    from compilefarm.cluster.places import has_place, missing_place

    name = f"ray: place for {environment_name}"
    if has_place(node_resources(), wanted):
        return ok(name, "a node has what a worker takes")
    return warning(
        name,
        f"a worker {missing_place(wanted)}",
        remedy="fine if an autoscaler adds such nodes; else add one, or change `resources`: jobs wait for it",
    )


def _check_interpreter(environment: DeclaredEnvironment, wanted: Mapping[str, float]) -> Check:
    from compilefarm.cluster.trials import interpreter_problems

    name, python = f"ray: interpreter of {environment.name}", environment.python
    if not python:
        return failed(name, "it has an image and no python", remedy="give python; nodes run the image, not workers")
    tried = interpreter_problems(python, wanted=wanted)
    problems = [f"{host}: {problem}" for host, problem in tried.items() if problem]
    if problems:
        remedy = f"have {python} on every node where a worker may be, with Compilefarm's and torch's packages"
        return failed(name, f"{python} cannot start workers on {'; '.join(problems)}", remedy=remedy)
    where = ", ".join(sorted(tried)) if tried else "no node; not tried"
    return ok(name, f"{python} on {where}")
