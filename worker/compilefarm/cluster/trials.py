"""Trials of interpreters on the nodes of a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from compilefarm.cluster.places import Resources, has_place

_TRIAL_SECONDS = 60.0
_NEEDED = "torch", "compilefarm.worker"
_PROGRAM = (
    "import importlib.util, sys; missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]; "
    "sys.exit(missing and 'it has no ' + ' and no '.join(missing) or 0)"
)


def interpreter_problems(python: str, *, wanted: Resources) -> Mapping[str, str]:
    """Why an interpreter cannot start workers, by host, for each node on which a worker may be; empty: it can.

    Args:
        python: its path.
        wanted: what a worker takes of a node.
    """
    hosts = {
        node["NodeID"]: node["NodeManagerHostname"]
        for node in ray.nodes()
        if node["Alive"] and has_place([node["Resources"]], wanted)
    }
    # It takes nothing of a node, so that it runs beside workers.
    trial = ray.remote(num_cpus=0, max_retries=0)(_problem)
    tried = {node: trial.options(scheduling_strategy=_on(node)).remote(python) for node in hosts}
    return {hosts[node]: _answer(each) for node, each in tried.items()}


def _problem(python: str) -> str:
    try:
        # -P: not what lies in the folder in which Ray was started.
        done = subprocess.run([python, "-P", "-c", _PROGRAM, *_NEEDED], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error.strerror)
    return done.stderr.strip()[-500:] if done.returncode else ""


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _answer(tried: object) -> str:
    try:
        return str(ray.get(tried, timeout=_TRIAL_SECONDS))
    except GetTimeoutError:
        return f"no answer within {_TRIAL_SECONDS:.0f} s"
    except RayError as error:
        return str(error).strip().splitlines()[0]
