"""Canaries of torch_internals/compiled_graphs.py."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import SimpleNamespace

from compilefarm.builder import programs
from compilefarm.torch_internals.compiled_graphs import (
    drop_kernels,
    put_kernels_into_place,
    replace_wrapper,
    wrapper_modules,
)

CACHE = importlib.import_module("torch._inductor.codecache")


def test_what_a_finished_program_does_without_is_where_it_was() -> None:
    graph = importlib.import_module("torch._inductor.output_code").CompiledFxGraph
    entry = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result").BundledAOTAutogradResult
    fields = {field.name for kind in (graph, entry) for field in dataclasses.fields(kind)}
    wanted = {*programs._LOGGED_BY_GRAPH, *programs._LOGGED_BY_ENTRY, "source_code", "cache_key", "fx_kwargs"}
    assert {"constants", "device_idxs"} <= fields, "loader/programs.py moves these"
    assert wanted | {"compiled_fw", "compiled_bw", "_triton_bundle"} <= fields, "finish_program finishes these"


def test_a_wrapper_is_found_by_the_name_of_its_file() -> None:
    source = "answer = 42"
    key, path = CACHE.PyCodeCache.write(source)
    module = CACHE.PyCodeCache.load_by_key_path(key, path)
    graph = SimpleNamespace(cache_key=key, source_code=source)
    assert wrapper_modules(graph) == [module]
    replace_wrapper(graph, "answer = 43")
    assert graph.source_code == "answer = 43"
    assert wrapper_modules(graph) == []
    assert graph.cache_key == CACHE.code_hash("answer = 43")


def test_kernels_of_a_graph_are_put_into_place_unless_they_were_dropped() -> None:
    bundler = importlib.import_module("torch._inductor.triton_bundler").TritonBundler
    assert list(inspect.signature(bundler.read_and_emit).parameters) == ["bundle"]
    graph = object.__new__(importlib.import_module("torch._inductor.output_code").CompiledFxGraph)
    # It looks at this when it is freed.
    graph.compiled_fn_runner = None
    drop_kernels(graph)
    put_kernels_into_place(graph)
    assert {field.name for field in dataclasses.fields(graph)} >= {"_triton_bundle"}
