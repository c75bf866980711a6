"""Options reach the worker, whether a user passed them, set them globally or exported them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config

from compilefarm.graph.options import capture_options, config_patches

_INDUCTOR = torch._inductor.config
_PRINT_OPTIONS = """
import json
from compilefarm.graph.options import capture_options, config_patches
print(json.dumps(config_patches(capture_options({}, cuda=False))[0], default=str))
"""


def _patches(**options: Any) -> tuple[dict[str, object], dict[str, object]]:
    return config_patches(capture_options(options, cuda=False))


def _patches_of_a_process(**environment: str) -> dict[str, object]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_OPTIONS],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    patches: dict[str, object] = json.loads(done.stdout)
    return patches


def test_nothing_is_sent_for_defaults() -> None:
    assert _patches() == ({}, {})


def test_modes_and_options_arrive() -> None:
    options = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.multi_kernel": 2, "cpp.simdlen": 8}
    assert _patches(**options)[0] == options


def test_option_names_may_have_dashes() -> None:
    assert _patches(**{"max-autotune": True})[0] == {"max_autotune": True}


def test_global_settings_arrive_and_options_go_before_them() -> None:
    with (
        _INDUCTOR.patch({"max_autotune": True, "realize_reads_threshold": 9}),
        torch._functorch.config.patch({"activation_memory_budget": 0.5}),
    ):
        inductor, functorch = _patches(realize_reads_threshold=11)
    assert inductor == {"max_autotune": True, "realize_reads_threshold": 11}
    assert functorch == {"activation_memory_budget": 0.5}


def test_patches_can_be_applied() -> None:
    inductor, functorch = _patches(
        max_autotune=True, pre_grad_fusion_options={"batch_linear": {"min_fuse_set_size": 3}}
    )
    with _INDUCTOR.patch(inductor), torch._functorch.config.patch(functorch):
        assert _INDUCTOR.max_autotune is True
        assert _INDUCTOR.pre_grad_fusion_options == {"batch_linear": {"min_fuse_set_size": 3}}


def test_true_is_not_one() -> None:
    with _INDUCTOR.patch({"triton.multi_kernel": 1}):
        one = capture_options({}, cuda=False)
    with _INDUCTOR.patch({"triton.multi_kernel": True}):
        true = capture_options({}, cuda=False)
    assert one != true


@pytest.mark.parametrize(
    "name",
    ["fx_graph_cache", "compile_threads", "trace.enabled", "worker_start_method", "cpp.cxx", "force_disable_caches"],
)
def test_what_cannot_change_a_result_stays_here(name: str) -> None:
    with _INDUCTOR.patch({name: "something else"}):
        assert _patches() == ({}, {})


def test_settings_from_the_environment_arrive() -> None:
    # torch takes both for its own defaults: nothing in the process tells them from untouched ones.
    assert _patches_of_a_process() == {}
    given = _patches_of_a_process(TORCHINDUCTOR_MAX_AUTOTUNE="1")
    assert given["max_autotune"] is True
    assert given["epilogue_fusion"] is True
    assert _patches_of_a_process(TORCHINDUCTOR_MAX_AUTOTUNE="0")["max_autotune"] is False


def test_variables_that_only_name_places_do_not_matter() -> None:
    assert _patches_of_a_process(TORCHINDUCTOR_CACHE_DIR="elsewhere", TORCHINDUCTOR_FX_GRAPH_CACHE="0", CXX="c++") == {}
