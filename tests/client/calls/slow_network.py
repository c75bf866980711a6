"""A network for tests of what a pod waits for: a farm that takes its time, in the time of a clock that stands still
otherwise. Every call ends at its deadline at the latest, as those of gRPC do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from compilefarm.client.testing import FakeClock

# What a farm says, and the seconds that it takes for it.
Said = tuple[float, Any]
Farm = Callable[[str, Any], Iterable[Said]]


class Refusal(grpc.RpcError):
    """What a call ends with instead of an answer."""

    def __init__(self, status: str, *told: tuple[str, str]) -> None:
        super().__init__(status)
        self._status = grpc.StatusCode[status]
        self._told = told

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return "as told"

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._told


@dataclass
class Call:
    """A call that is under way; its answers are taken one by one, as time passes."""

    said: Iterator[Said]
    clock: FakeClock
    deadline: float

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> Any:
        seconds, answer = next(self.said)
        if self.clock.seconds + seconds >= self.deadline:
            self.clock.seconds = max(self.clock.seconds, self.deadline)
            raise Refusal("DEADLINE_EXCEEDED")
        self.clock.seconds += seconds
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def result(self) -> Any:
        return next(self)

    def cancel(self) -> None:
        """Nobody is told."""

    def done(self) -> bool:
        return False


class SlowNetwork(grpc.Channel):  # type: ignore[misc]  # grpc has no types of its own
    """A channel to a farm.

    Args:
        farm: what it says to a request, by the name of the method.
        clock: its time.

    Attributes:
        deadlines: when each call would have ended at the latest; reports, for which nobody waits, are left out.
    """

    def __init__(self, farm: Farm, *, clock: FakeClock) -> None:
        self._farm = farm
        self._clock = clock
        self.deadlines: list[float] = []

    def start(self, method: str, request: Any, *, timeout: float) -> Call:
        if method != "Report":
            self.deadlines.append(self._clock.seconds + timeout)
        said = iter(self._farm(method, request))
        return Call(said=said, clock=self._clock, deadline=self._clock.seconds + timeout)

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        return _Answered(self, method.rsplit("/", 1)[1])

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Any:
        return _Answered(self, method.rsplit("/", 1)[1])

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Any:
        name = method.rsplit("/", 1)[1]
        return lambda request, *, timeout, metadata=(): self.start(name, request, timeout=timeout)

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        raise NotImplementedError

    def unsubscribe(self, callback: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to end."""

    def __enter__(self) -> SlowNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Answered:
    """A method with one answer."""

    network: SlowNetwork
    name: str

    def __call__(self, request: Any, *, timeout: float, metadata: Any = ()) -> Any:
        return self.future(request, timeout=timeout).result()

    def future(self, request: Any, *, timeout: float, metadata: Any = ()) -> Call:
        return self.network.start(self.name, request, timeout=timeout)
