"""The entry point of `torch.compile(model, backend="compilefarm")`: one Farm for the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from compilefarm.client.config import DYNAMO
from compilefarm.client.farm import Farm, starts_of
from compilefarm.client.options import Options
from compilefarm.client.program_sources import set_source_of_process
from compilefarm.client.programs import Program
from compilefarm.client.starts import Starts, add_route
from compilefarm.core.requests import Request

_lock = threading.Lock()
_farm: Farm | None = None


def compilefarm(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Options | None = None,
    name: str = "",
) -> Program:
    """As `Farm.backend`, with the farm that COMPILEFARM_ADDRESS names.

    Raises:
        ConfigurationError: the environment names none, or something unknown.
    """
    return farm_of_process().backend(graph_module, example_inputs, mode=mode, options=options, name=name)


def farm_of_process() -> Farm:
    """The farm that the environment names; the same one at every call.

    Raises:
        ConfigurationError: it names none, or something unknown.
    """
    global _farm
    with _lock:
        if _farm is None:
            _farm = Farm()
        return _farm


def _start_with_farm_of_process(compiler: Any) -> Starts | None:
    return starts_of(farm_of_process()) if compiler is compilefarm else None


def _ask_farm_of_process(request: Request) -> Program:
    return farm_of_process().compile_request(request)


set_source_of_process(_ask_farm_of_process)
# Before the first frame is traced, which is before this backend is called. It imports torch.
if os.environ.get(DYNAMO, "off") != "off":
    add_route(_start_with_farm_of_process)
