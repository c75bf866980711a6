"""Libraries of operators that pods and the farm of `library_farm` have."""

from __future__ import annotations

# torch runs `register_fake` wherever it traces a graph: in the pod, and in the child that compiles.
REACHING = """
import socket, sys
from pathlib import Path
import torch


@torch.library.custom_op("contained::reach", mutates_args=())
def reach(x: torch.Tensor, port: int, place: str) -> torch.Tensor:
    return x.clone()


def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return type(error).__name__
    return "done"


@torch.library.custom_op("contained::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("contained::misdescribed", mutates_args=())
def misdescribed(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0, 2)


@misdescribed.register_fake
def _(x):
    return x.new_empty(0, 3)


@plain.register_fake
def _(x):
    return torch.empty_like(x)


@reach.register_fake
def _(x, port, place):
    # A value beside the function would be part of what the operator is.
    if "pytest" not in sys.modules:
        # No text of a graph has slashes.
        secret = bytes.fromhex(place).decode()
        attempts = (
            lambda: socket.create_connection(("127.0.0.1", port)),
            lambda: Path(secret).read_text(),
            lambda: Path(secret).with_name("planted").touch(),
        )
        raise ValueError("reached: " + ", ".join(map(outcome, attempts)))
    return torch.empty_like(x)
"""

SCALED = """
import torch

@torch.library.custom_op("operators_for_the_farm::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor

@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)
"""

MODULES = {"reaching": REACHING, "operators_for_the_farm": SCALED}
