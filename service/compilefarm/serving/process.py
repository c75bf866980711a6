"""Logging and signals of the programs of a farm."""

from __future__ import annotations

import asyncio
import logging
import signal

from compilefarm.service.logs import FORMATTERS


def set_up_log(log_format: str) -> None:
    """Writes log lines to standard error, in one of FORMATTERS."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def end_asked(asked: asyncio.Event) -> asyncio.Event:
    """Makes SIGTERM and SIGINT set an event, from now on; returns it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    return asked
