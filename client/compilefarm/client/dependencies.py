"""What a Farm stands on."""

from __future__ import annotations

from dataclasses import dataclass, field

from compilefarm.client.clock import Clock, SystemClock
from compilefarm.client.connection import OpenChannel, open_channel
from compilefarm.client.records import PROCESS_LEDGER, Ledger
from compilefarm.client.runtime import Runtime
from compilefarm.client.torch_runtime import TorchRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a Farm stands on; tests put it on something else.

    Attributes:
        runtime: torch.
        clock: time.
        open_channel: the network.
        ledger: where graphs are noted.
        patience_seconds: how long a pod waits for a look-up that would rather serve. What is stored is there sooner.
    """

    runtime: Runtime = field(default_factory=TorchRuntime)
    clock: Clock = field(default_factory=SystemClock)
    open_channel: OpenChannel = open_channel
    ledger: Ledger = PROCESS_LEDGER
    patience_seconds: float = 1.0
