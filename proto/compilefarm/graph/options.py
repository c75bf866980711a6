"""Settings of the compiler: what the user asked for and what the process deviates in from torch's defaults.

What a request may set is a list of names with a type each (core/inductor_settings.py, core/functorch_settings.py). A
client that sets something else compiles locally, and a worker refuses it. What cannot change a result is left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

import torch

from compilefarm.core.compiler_settings import (
    CUDA_GRAPHS,
    CompilerSettings,
    asks_for_cuda_graphs,
    is_of_cuda_graphs,
    settings_of_options,
)
from compilefarm.core.errors import InvalidRequest
from compilefarm.core.functorch_settings import FUNCTORCH
from compilefarm.core.inductor_settings import INDUCTOR
from compilefarm.graph import settings
from compilefarm.graph.bypass import Bypass
from compilefarm.torch_internals.modes import options_of_mode, options_of_modes
from compilefarm.torch_internals.settings import FUNCTORCH as FUNCTORCH_MODULE
from compilefarm.torch_internals.settings import INDUCTOR as INDUCTOR_MODULE
from compilefarm.v1.graph_pb2 import NamedValue, Value
from compilefarm.v1.job_pb2 import Options
from compilefarm.v1.request_file_pb2 import CompileArguments
from compilefarm.v1.vocabulary_pb2 import Mode

# Several kernels for one thing, of which the first call in each process measures and picks one
# (torch/_inductor/codegen/multi_kernel.py); a pick that is forced is read from the settings of that process.
_MULTI_KERNEL = "triton.multi_kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configuration:
    """A configuration module of torch, and what becomes of its settings."""

    module: ModuleType
    table: CompilerSettings

    def is_allowed(self, name: str) -> bool:
        return name in self.table.allowed and name in settings.defaults(self.module)


_INDUCTOR = _Configuration(module=INDUCTOR_MODULE, table=INDUCTOR)
_FUNCTORCH = _Configuration(module=FUNCTORCH_MODULE, table=FUNCTORCH)


def capture_options(user_options: Mapping[str, object], *, cuda: bool, without_effect: Collection[str] = ()) -> Options:
    """What differs from torch's defaults, by user's wish or in this process.

    Args:
        user_options: Inductor options from mode= and options= of torch.compile, by the names of the settings.
        cuda: whether the job computes on a GPU.
        without_effect: names of settings that mean nothing for the graph.

    Raises:
        Bypass: an option is not known (a local compile says so in torch's own words), is none that a request may set,
            or not to this value, or asks for what no artifact can hold: a choice of kernels at the first call.
    """
    known = settings.defaults(_INDUCTOR.module)
    for name in user_options:
        if name not in known:
            raise Bypass("unknown_option", f"torch {torch.__version__} has no Inductor option {name!r}")
    inductor = settings.values(_INDUCTOR.module) | dict(user_options)
    if not (cuda and inductor[CUDA_GRAPHS]):
        inductor |= {name: known[name] for name in known if is_of_cuda_graphs(name)}
    inductor |= {name: known[name] for name in without_effect}
    if not cuda:
        # Of kernels of Triton.
        inductor[_MULTI_KERNEL] = known[_MULTI_KERNEL]
    elif inductor[_MULTI_KERNEL]:
        raise Bypass("multi_kernel", f"{_MULTI_KERNEL} has each process measure kernels at its first call; set it to 0")
    return Options(
        inductor=_deviations(_INDUCTOR, now=inductor),
        functorch=_deviations(_FUNCTORCH, now=settings.values(_FUNCTORCH.module)),
    )


def check_names(user_options: Mapping[str, object]) -> None:
    """Refuses options that torch.compile refuses, too: a misspelt one would do nothing, and nobody would see it.

    Args:
        user_options: as `capture_options` takes them.

    Raises:
        RuntimeError: as torch raises; this torch has no such option.
    """
    known = settings.defaults(_INDUCTOR.module)
    for name in user_options:
        near = difflib.get_close_matches(name, known, n=1) if name not in known else []
        if near or (name not in known and _is_inductors(name)):
            hint = f": did you mean {near[0]!r}?" if near else "; torch._inductor.list_options() has all"
            raise RuntimeError(f"torch {torch.__version__} has no Inductor option {name!r}{hint}")


def _is_inductors(name: str) -> bool:
    """Whether an option can only be one of Inductor itself: devices of others bring families of their own."""
    family, dot, _ = name.partition(".")
    return not dot or any(known.startswith(f"{family}.") for known in settings.defaults(_INDUCTOR.module))


def recording_settings(options: Options, user_options: Mapping[str, object] | None = None) -> dict[str, object]:
    """What to set of Inductor while a program is loaded; empty if it is not to be recorded.

    Args:
        options: of the job.
        user_options: as `capture_options` takes them. What is about the recording alone is in these.
    """
    if not asks_for_cuda_graphs(options):
        return {}
    return {
        **{name: value for name, value in (user_options or {}).items() if is_of_cuda_graphs(name)},
        **_patch(_INDUCTOR, options.inductor),
    }


def config_patches(options: Options) -> tuple[dict[str, object], dict[str, object]]:
    """What to hand to torch._inductor.config.patch and torch._functorch.config.patch.

    Raises:
        InvalidRequest: a setting is not known to this torch, or is none that a request may set, or not to this value.
    """
    return _patch(_INDUCTOR, options.inductor), _patch(_FUNCTORCH, options.functorch)


def capture_arguments(*, mode: str | None, user_options: Mapping[str, object]) -> CompileArguments:
    """How torch.compile was called, for a request that `capture_options` could say.

    Args:
        mode: as in torch.compile.
        user_options: its options, without those that the mode stands for.
    """
    named = settings_of_options(user_options)
    mode = "" if mode in (None, "default") else mode
    return CompileArguments(
        mode=mode,
        mode_settings=sorted(options_of_mode(mode)) if mode else (),
        options=_said(named),
        settings_from_variables=any(settings.set_variables(each.module) for each in (_INDUCTOR, _FUNCTORCH)),
    )


def describe_settings() -> tuple[list[NamedValue], list[NamedValue]]:
    """Every setting that a request may make, of Inductor and of functorch, with its default where that can be said."""
    return _defaults_of(_INDUCTOR), _defaults_of(_FUNCTORCH)


def describe_modes() -> list[Mode]:
    """What each mode of torch.compile stands for."""
    return [
        Mode(name=name, options=_said(options), cuda_graphs=bool(options.get(CUDA_GRAPHS)))
        for name, options in options_of_modes().items()
        if name != "default"
    ]


def _said(options: Mapping[str, object]) -> list[NamedValue]:
    # What a request refuses is at its default in one that could be made.
    return [
        NamedValue(name=name, value=_value_of(options[name]))
        for name in sorted(options)
        if _INDUCTOR.is_allowed(name) and INDUCTOR.allowed[name].admits(options[name])
    ]


def _defaults_of(configuration: _Configuration) -> list[NamedValue]:
    # The default of an alias is that of the other name, and is nothing by itself.
    return [
        NamedValue(name=name, value=_value_of(default) if configuration.table.allowed[name].admits(default) else None)
        for name, default in sorted(settings.defaults(configuration.module).items())
        if configuration.is_allowed(name)
    ]


def _deviations(configuration: _Configuration, *, now: Mapping[str, object]) -> list[NamedValue]:
    return [
        _named(name, now[name], table=configuration.table)
        for name in _deviating(configuration, now=now)
        if not configuration.table.has_no_effect(name)
    ]


def _deviating(configuration: _Configuration, *, now: Mapping[str, object]) -> Iterator[str]:
    defaults = settings.defaults(configuration.module)
    variables = settings.set_variables(configuration.module)
    from_variables = settings.set_by(variables, configuration.module)
    for name in sorted(now):
        is_default = type(now[name]) is type(defaults[name]) and now[name] == defaults[name]
        if not is_default or name in from_variables or (variables and configuration.is_allowed(name)):
            yield name


def _named(name: str, value: object, *, table: CompilerSettings) -> NamedValue:
    reason = table.find_refusal(name)
    if reason is not None:
        raise Bypass("refused_option", f"the setting {name} differs from its default; farms do not take it: {reason}")
    if not table.allowed[name].admits(value):
        raise Bypass(
            "custom_option", f"the setting {name} is {value!r:.80}; farms take {table.allowed[name].describe()}"
        )
    return NamedValue(name=name, value=_value_of(value))


def _value_of(value: object) -> Value:
    match value:
        case None:
            made = Value()
            made.none.SetInParent()
            return made
        case bool():
            return Value(boolean=value)
        case int():
            return Value(integer=value)
        case float():
            return Value(real=value)
        case str():
            return Value(text=value)
    raise TypeError(f"no type of a setting admits a {type(value).__name__}")


def _patch(configuration: _Configuration, entries: Iterable[NamedValue]) -> dict[str, object]:
    patch: dict[str, object] = {}
    for entry in entries:
        if entry.name in patch:
            raise InvalidRequest(f"the setting {entry.name!r:.80} is there twice")
        patch[entry.name] = _checked(entry, configuration)
    return patch


def _checked(entry: NamedValue, configuration: _Configuration) -> object:
    name = entry.name
    if name not in settings.defaults(configuration.module):
        where = configuration.module.__name__
        raise InvalidRequest(f"torch {torch.__version__} has no setting {name!r:.80} in {where}")
    return configuration.table.value_of(entry)
