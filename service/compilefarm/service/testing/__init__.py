"""A gateway without compilers, for tests of the gateway and of its clients: scripted workers, a clock that stands
still, real servers on free ports.
"""

from compilefarm.service.testing.calls import Calls, Refused, Watch, calling, refusals
from compilefarm.service.testing.certificates import Authority, Issued
from compilefarm.service.testing.clock import ManualClock
from compilefarm.service.testing.jobs import ENVIRONMENT, active_job, admitted, sample_job
from compilefarm.service.testing.pool import (
    HeldCompile,
    HeldCompiles,
    ScriptedPool,
    ScriptedScalingPool,
    artifact_of,
    compile_at_once,
    verify_at_once,
)
from compilefarm.service.testing.servers import FREE_PORT, serving, serving_in_thread

__all__ = [
    "ENVIRONMENT",
    "FREE_PORT",
    "Authority",
    "Calls",
    "HeldCompile",
    "HeldCompiles",
    "Issued",
    "ManualClock",
    "Refused",
    "ScriptedPool",
    "ScriptedScalingPool",
    "Watch",
    "active_job",
    "admitted",
    "artifact_of",
    "calling",
    "compile_at_once",
    "refusals",
    "sample_job",
    "serving",
    "serving_in_thread",
    "verify_at_once",
]
