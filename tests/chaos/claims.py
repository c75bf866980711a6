"""All claims by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import acknowledged, dead_farm, load, malformed_requests, progress, single_compile, wrong_bytes
from .verdicts import Claim

CLAIMS: Mapping[str, Claim] = {
    "one-compile": single_compile.run,
    "no-wrong-byte": wrong_bytes.run,
    "nothing-lost": acknowledged.run,
    "progress": progress.run,
    "dead-farm": dead_farm.run,
    "malformed-requests": malformed_requests.run,
    "load": load.run,
}
