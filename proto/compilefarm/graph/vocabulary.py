"""What the torch of this process understands of requests."""

from __future__ import annotations

from compilefarm.graph.options import describe_modes, describe_settings
from compilefarm.graph.targets import target_names
from compilefarm.v1.vocabulary_pb2 import TargetNames, Vocabulary


def describe_vocabulary() -> Vocabulary:
    """Everything that decides whether, and how, a request of another release can be said with this one."""
    inductor, functorch = describe_settings()
    return Vocabulary(
        targets=[TargetNames(kind=kind, names=sorted(names)) for kind, names in sorted(target_names().items())],
        inductor=inductor,
        functorch=functorch,
        modes=describe_modes(),
    )
