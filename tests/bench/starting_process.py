"""A process that `tests.bench.starts` measures: `python -m tests.bench.starting_process MODE ...`; prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from compilefarm.core.dynamo_packages import Lookup, Variant
from compilefarm.torch_internals.dynamo_frames import Frame


def bert(layers: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    tokens = torch.arange(12).reshape(2, 6)
    return BertModel(BertConfig(num_hidden_layers=layers, **sizes)).eval(), (tokens, torch.ones_like(tokens))


def llama(layers: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    config = LlamaConfig(num_hidden_layers=layers, num_key_value_heads=2, **sizes)
    return LlamaForCausalLM(config).eval(), (torch.arange(12).reshape(2, 6),)


MODELS: dict[str, Callable[[int], Any]] = {"BERT": bert, "Llama": llama}


def verify(folder: str, name: str, layers: str) -> dict[str, Any]:
    """Installs what an earlier process has left in the folder, or traces and leaves it there."""
    from compilefarm.packages.lookup_keys import lookup_key
    from compilefarm.reuse import installation, interception
    from tests.reuse.processes import pod

    seconds = dict.fromkeys(("key", "install", "build", "load"), 0.0)
    # Of this thread: those of OpenMP turn round and round for a while after each operator, on each processor there is.
    clock = time.thread_time

    def timed(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            started = clock()
            try:
                return function(*arguments, **keywords)
            finally:
                seconds[what] += clock() - started

        return call

    installation.build_guards = timed("build", installation.build_guards)
    installation.install = timed("install", installation.install)
    find_key = timed("key", lookup_key)
    with pod(Path(folder)) as own, torch.no_grad():
        find = own.variants.find

        def find_by_key(lookup: Lookup, frame: Frame) -> Sequence[Variant]:
            # As a pod does, which describes its model twice: for the key of packages, and for the comparison.
            scopes = {"scope": frame.global_variables, "local_variables": frame.local_variables}
            find_key(lookup, code=frame.code, **scopes)
            return find(lookup, frame)

        own.variants.find = find_by_key
        own.variants.load = timed("load", own.variants.load)
        model, inputs = MODELS[name](int(layers))
        started = clock()
        torch.compile(model, backend=own.backend)(*inputs)
        ended = clock()
    assert interception
    return {
        "guards": sum(each.guards for each in own.outcomes),
        "trace_seconds": ended - started,
        "key_seconds": seconds["key"],
        "verify_seconds": seconds["install"] - seconds["build"] - seconds["load"],
        "build_seconds": seconds["build"],
    }


def first() -> dict[str, float]:
    """The first result of a small encoder, in a process that has made it."""
    model, inputs = bert(6)
    return _timed(model, inputs)


def loading() -> dict[str, float]:
    """The same in a process that reads weights before, which takes no interpreter."""
    model, inputs = bert(6)
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"weights": torch.zeros(100_000_000)}, file.name)
        started = time.perf_counter()
        while time.perf_counter() - started < 1.0:
            torch.load(file.name, weights_only=True)["weights"].sum().item()
    return _timed(model, inputs)


def _timed(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, float]:
    processor, clock = time.process_time(), time.perf_counter()
    with torch.no_grad():
        torch.compile(model, backend="compilefarm")(*inputs)
    return {"processor": time.process_time() - processor, "clock": time.perf_counter() - clock}


def size() -> dict[str, int]:
    """Bytes of what is published of MiniLM."""
    from compilefarm.benchmarks.cases import make_case
    from compilefarm.client import Farm
    from compilefarm.core.signatures import new_signing_key
    from compilefarm.packages import packing
    from compilefarm.service.testing import serving_in_thread
    from compilefarm.store.opening import open_caches

    packed: list[dict[str, int]] = []
    pack = packing.pack

    def noting(found: packing.Found) -> bytes:
        content = pack(found)
        requests = sum(len(program.request) for program in found.programs.values())
        packed.append({"package_bytes": len(content), "request_bytes": requests})
        return content

    packing.pack = noting
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "key.pem"
        key_file.write_bytes(new_signing_key().pem())
        store = asyncio.run(open_caches(folder, size_limit_bytes=50_000_000, lifetime_seconds=3600))
        with serving_in_thread(caches=store) as address:
            farm = Farm(address, dynamo="publish", package_signing_key=key_file, on_failure="eager")
            case = make_case("minilm", device="cpu")
            case.results(torch.compile(case.function, backend=farm.backend), case.calls[0])
    (found,) = packed
    return found


if __name__ == "__main__":
    modes: dict[str, Callable[..., Any]] = {"verify": verify, "first": first, "loading": loading, "size": size}
    print(json.dumps(modes[sys.argv[1]](*sys.argv[2:])))
