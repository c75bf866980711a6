"""Commands inside the process of the tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from compilefarm.cli.main import main


def run_command(*arguments: str) -> int:
    """Runs a command to its end and returns its exit status.

    It may need an event loop, and pytest-asyncio keeps one for the main thread, hence it has a thread of its own.
    """
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(main, arguments).result()
