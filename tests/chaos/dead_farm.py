"""A dead farm costs little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from .dead_farms import (
    DeadFarm,
    black_hole,
    foreign_service,
    nobody,
    noise,
    slow,
    stuck,
    unanswered,
    web_server,
    yes_sayer,
)
from .pods import run_pod
from .verdicts import Scale, Verdict

_FARMS: Mapping[str, Callable[[], AbstractContextManager[DeadFarm]]] = {
    "refuses connections": nobody,
    "drops packets": unanswered,
    "swallows bytes": black_hole,
    "slow": lambda: slow(60.0),
    "takes graphs and goes silent": stuck,
    "random bytes": noise,
    "HTTP/1": web_server,
    "another service of gRPC": foreign_service,
    "empty answers": yes_sayer,
}
# They answer at once, so asking them costs nothing; whether they are asked again is no matter of time.
_PROMPT = {"empty answers"}
# A connection or a question at first, and another where the first was broken off.
_MOST_VISITS = 2


def run(scale: Scale) -> Verdict:
    """A pod with many graphs and no farm, for every way of not being one."""
    graphs = 20
    connect_seconds, timeout_seconds = (0.5, 1.0) if scale.short else (5.0, 15.0)
    costs, problems = [], []
    for name, make in _FARMS.items():
        with make() as farm:
            got = run_pod(
                farm.address,
                [f"graph_{number}" for number in range(graphs)],
                connect_timeout_seconds=connect_seconds,
                timeout_seconds=timeout_seconds,
            )
            visits = farm.visits
        first, others = got[0].seconds, sum(each.seconds for each in got[1:])
        costs.append(f"{name}: {first:.2f} s, then {1000 * others / (graphs - 1):.1f} ms a graph")
        if any(each.outcome != "fallback" for each in got):
            problems.append(f"{name}: not every graph was compiled locally")
        if name not in _PROMPT and visits > _MOST_VISITS:
            problems.append(f"{name}: it was asked {visits} times for {graphs} graphs")
        if not scale.short and (others > connect_seconds or first > 2 * timeout_seconds):
            problems.append(f"{name}: the first graph took {first:.1f} s longer, the others {others:.1f} s")
    return Verdict(
        done=f"a pod of {graphs} graphs, connect timeout {connect_seconds:g} s, budget {timeout_seconds:g} s a graph, "
        f"without a farm in {len(_FARMS)} ways",
        seen="; ".join(costs),
        problems=problems,
    )
