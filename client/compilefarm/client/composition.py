"""Puts the parts of a Farm together."""

from __future__ import annotations

from compilefarm.client.attempts import Attempts
from compilefarm.client.config import ClientConfig
from compilefarm.client.connection import Connection
from compilefarm.client.dependencies import Dependencies
from compilefarm.client.exchange import OnProgress
from compilefarm.client.farm_programs import FarmPrograms
from compilefarm.client.graph_compiler import GraphCompiler
from compilefarm.client.loading import Loader
from compilefarm.client.parts import PartsCompiler
from compilefarm.client.recorder import open_recorder
from compilefarm.client.reports import Reporter
from compilefarm.client.resorts import Resorts
from compilefarm.client.self_check import SelfCheck


def compose(
    config: ClientConfig, *, dependencies: Dependencies, connection: Connection, on_progress: OnProgress
) -> GraphCompiler:
    """Returns what turns graphs into programs.

    Args:
        config: of the client.
        dependencies: torch, time, and where graphs are noted.
        connection: to the farm.
        on_progress: called while the farm works.

    Raises:
        UnusableRecording: nothing can be recorded in the folder that the configuration names.
    """
    reporter, resorts = Reporter(connection), Resorts(on_failure=config.on_failure)
    self_check = SelfCheck(fraction=config.self_check, resorts=resorts, report=reporter.report_self_check)
    farm_programs = FarmPrograms(
        config,
        dependencies=dependencies,
        connection=connection,
        loader=Loader(runtime=dependencies.runtime, self_check=self_check),
        on_progress=on_progress,
    )
    recorder = open_recorder(config)
    attempts = Attempts(config, runtime=dependencies.runtime, farm_programs=farm_programs)
    return GraphCompiler(
        dependencies=dependencies,
        attempts=attempts,
        parts=PartsCompiler(
            dependencies=dependencies, attempts=attempts, resorts=resorts, recorder=recorder, reporter=reporter
        ),
        resorts=resorts,
        recorder=recorder,
        reporter=reporter,
    )
