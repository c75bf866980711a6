"""Canaries of torch_internals/settings.py, and whether what becomes of each setting has been decided."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
import torch

from compilefarm.core.compiler_settings import Word
from compilefarm.core.functorch_settings import FUNCTORCH as OF_FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR as OF_INDUCTOR
from compilefarm.graph import settings
from compilefarm.torch_internals.settings import DYNAMO, FUNCTORCH, INDUCTOR, SYMBOLIC_SHAPES, defaults_of

_IS_NEWEST = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
TABLES = ((INDUCTOR, OF_INDUCTOR), (FUNCTORCH, OF_FUNCTORCH))
# What torch 2.11 has and 2.15 has not.
_EARLIER_SETTINGS = {
    "always_complex_memory_overlap_TESTING_ONLY", "autoheuristic_collect", "autoheuristic_use", "force_same_precision",
    "partitioned_scatter_memory_budget", "triton.enable_tlx_templates",
}  # fmt: skip


def test_modules_hold_the_settings_that_are_decided_by() -> None:
    # core/dynamo_settings.py
    assert "inline_inbuilt_nn_modules" in defaults_of(DYNAMO)
    assert "use_duck_shape" in defaults_of(SYMBOLIC_SHAPES)


def test_settings_and_their_defaults() -> None:
    # torch/utils/_config_module.py: ConfigModule._config, its entries' default, and get_config_copy().
    for config, name, default in (
        (INDUCTOR, "max_autotune", False),
        (INDUCTOR, "triton.cudagraphs", False),
        (FUNCTORCH, "activation_memory_budget", 1.0),
    ):
        assert defaults_of(config)[name] == default
        assert settings.values(config)[name] == default
        with config.patch({name: "changed"}):
            assert settings.values(config)[name] == "changed"
            assert defaults_of(config)[name] == default


def test_every_setting_has_a_default() -> None:
    for config in (INDUCTOR, torch._functorch.config):
        assert settings.values(config).keys() <= defaults_of(config).keys()


def test_somebody_has_decided_what_becomes_of_every_setting() -> None:
    # To mend: core/inductor_settings.py, core/functorch_settings.py. What puts a text into source is never allowed.
    for config, table in TABLES:
        assert [name for name in defaults_of(config) if not table.is_classified(name)] == []
        assert not table.allowed.keys() & (table.refused.keys() | table.without_effect.keys())
        assert not table.refused.keys() & table.without_effect.keys()


@pytest.mark.skipif(not _IS_NEWEST, reason="releases before the newest lack later settings")
def test_every_setting_that_is_listed_exists() -> None:
    for config, table in TABLES:
        listed = {name for name in (*table.allowed, *table.without_effect, *table.refused) if name[-1] != "."}
        assert listed - defaults_of(config).keys() <= _EARLIER_SETTINGS


def test_settings_of_other_back_ends_are_read_there_alone() -> None:
    # core/inductor_settings.py leaves these families out of requests.
    folder = Path(torch.__file__).parent / "_inductor"
    readers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"config\.(halide|xpu)\.", path.read_text(encoding="utf-8"))
    }
    assert readers <= {"codegen/halide.py", "codegen/xpu/compile_utils.py", "codegen/cutlass/utils.py"}
    assert "codegen/halide.py" in readers


def test_settings_still_have_the_type_that_is_listed() -> None:
    for config, table in TABLES:
        defaults = defaults_of(config)
        for name in table.allowed.keys() & defaults.keys():
            # torch/utils/_config_module.py: _ConfigEntry.alias; an alias has no default of its own.
            assert config._config[name].alias or table.allowed[name].admits(defaults[name]), name


@pytest.mark.skipif(not _IS_NEWEST, reason="releases before the newest lack later words")
def test_words_of_settings_are_those_that_torch_names() -> None:
    for config, table in TABLES:
        for name, allowed in table.allowed.items():
            if isinstance(allowed, Word) and name in config._config:
                named = typing.get_args(config._config[name].value_type)
                assert not named or allowed.words <= set(named), name
