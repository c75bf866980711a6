"""Devices of a request. CUDA devices are numbered by the request, not by the machine: a pod on cuda:3 asks for the same
artifact as a pod on cuda:0.
"""

from __future__ import annotations

import torch

from compilefarm.core.errors import InvalidRequest
from compilefarm.graph.bypass import Bypass
from compilefarm.v1.graph_pb2 import Device


class DeviceNumbers:
    """Numbers the CUDA devices of one request in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    @property
    def cuda_devices(self) -> tuple[int, ...]:
        """Physical index of each number."""
        return tuple(self._numbers)

    def encode(self, device: torch.device) -> Device:
        """The device as the request calls it.

        Raises:
            Bypass: it is neither CPU nor CUDA, or a second CUDA device.
        """
        if device.type == "cpu":
            return Device(type="cpu")
        if device.type != "cuda":
            raise Bypass("device_type", f"the graph uses the device {device}; the farm compiles for cpu and cuda")
        if device.index is None:
            self._number(current_cuda_device())
            return Device(type="cuda")
        return Device(type="cuda", index=self._number(device.index))

    def _number(self, index: int) -> int:
        number = self._numbers.setdefault(index, len(self._numbers))
        if number > 0:
            indices = " and ".join(f"cuda:{known}" for known in self._numbers)
            raise Bypass("several_devices", f"the graph uses {indices}; the farm compiles for one GPU at a time")
        return number


def current_cuda_device() -> int:
    """The device that "cuda" without index means here; 0 before CUDA is in use."""
    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


def decode_device(device: Device) -> torch.device:
    """The device on a worker, whose only GPU is number 0.

    Raises:
        InvalidRequest: there is no such device on a worker.
    """
    if device.type == "cpu" and not device.HasField("index"):
        return torch.device("cpu")
    if device.type == "cuda" and device.index == 0:
        return torch.device("cuda", 0) if device.HasField("index") else torch.device("cuda")
    raise InvalidRequest(
        f"device {device.type[:20]!r} with number {device.index} is not known: cpu, and cuda with number 0, are"
    )
