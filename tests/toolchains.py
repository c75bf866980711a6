"""What is known of C++ compilers, for pools of tests."""

from __future__ import annotations

import asyncio

from compilefarm.v1.gateways_pb2 import ToolchainRecord


class KeptToolchains:
    """What workers have found out, in memory. Satisfies compilefarm.core.pool.Toolchains.

    Attributes:
        records: what is kept, by machine.
        kept: set once something is.
    """

    def __init__(self) -> None:
        self.records: dict[str, ToolchainRecord] = {}
        self.kept = asyncio.Event()

    async def find(self, machine: str) -> ToolchainRecord | None:
        return self.records.get(machine)

    async def keep(self, record: ToolchainRecord) -> None:
        self.records[record.machine] = record
        self.kept.set()
