"""NumPy as Dynamo leaves it in graphs: torch's own functions of NumPy's names, on tensors (torch/_dynamo/utils.py).

The names that these have on the wire say where in `torch._numpy` they lie; a release that moves one has to keep them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

_NUMPY = "torch._numpy"
# They compute on tensors, and write to none.
_FUNCTIONS = """
    absolute add all amax amin angle any append arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax
    argmin argsort around array array_split asarray ascontiguousarray atleast_1d atleast_2d atleast_3d average
    bartlett bitwise_and bitwise_not bitwise_or bitwise_xor blackman broadcast_arrays broadcast_to cbrt ceil clip
    column_stack concatenate conj conjugate convolve copy copysign corrcoef correlate cos cosh count_nonzero cov
    cross cumprod cumsum deg2rad degrees diag diagflat diagonal diff divide divmod dot dsplit dstack einsum
    empty_like equal exp exp2 expand_dims expm1 eye fabs fix flip fliplr flipud float_power floor floor_divide
    fmax fmin fmod full full_like gcd geomspace gradient greater greater_equal hamming hanning heaviside hsplit
    hstack hypot i0 identity imag indices inner invert isclose iscomplex isfinite isinf isnan isneginf isposinf
    isreal kaiser kron lcm ldexp less less_equal linspace log log10 log1p log2 logaddexp logaddexp2 logical_and
    logical_not logical_or logical_xor logspace matmul max maximum mean median meshgrid min minimum mod modf
    moveaxis multiply nan_to_num negative nextafter not_equal ones ones_like outer pad percentile positive power
    prod ptp quantile rad2deg radians ravel real reciprocal remainder repeat reshape rint roll rollaxis rot90
    round searchsorted sign signbit sin sinc sinh sort split sqrt square squeeze stack std subtract sum swapaxes
    take take_along_axis tan tanh tensordot tile trace transpose tri tril tril_indices triu triu_indices
    true_divide trunc vander var vdot vsplit vstack where zeros zeros_like fft.fft fft.fft2 fft.fftfreq fft.fftn
    fft.fftshift fft.ifft fft.ifft2 fft.ifftn fft.ifftshift fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2
    fft.rfftfreq fft.rfftn linalg.cholesky linalg.cond linalg.det linalg.eigh linalg.eigvalsh linalg.inv
    linalg.matrix_power linalg.multi_dot linalg.norm linalg.pinv linalg.qr linalg.slogdet linalg.solve linalg.svd
"""
_METHODS = """
    all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten max mean min prod ptp ravel
    repeat reshape round sort squeeze std sum swapaxes take trace transpose var
"""
_OPERATORS = """
    abs add and_ eq floordiv ge getitem gt invert le lshift lt matmul mod mul ne neg or_ pos pow rshift sub truediv xor
"""
# What each of Dynamo's wrappers calls.
_ATTRIBUTES = {"numpy_to_tensor_wrapper": "f", "numpy_method_wrapper": "method", "numpy_operator_wrapper": "op"}
# Takes the name of a dtype after the array.
AS_TYPE = f"{_NUMPY}.ndarray.astype"
# Takes the smallest number of dimensions by name.
ARRAY = f"{_NUMPY}.array"
# Takes an equation before the arrays.
EINSUM = f"{_NUMPY}.einsum"


@functools.cache
def numpy_calls() -> Mapping[str, Callable[..., Any]]:
    """What graphs call for NumPy's functions, methods of arrays, and operators on these, by name."""
    return {name: _as_function(name, wrapper) for name, wrapper in _wrappers().items()}


def name_numpy_call(target: object) -> str | None:
    """The name of what a graph calls for NumPy; None if it is not among those, or nothing of NumPy's."""
    if isinstance(target, FunctionType) and target.__module__ == __name__:
        return next((name for name, call in numpy_calls().items() if call is target), None)
    return _names().get(_called_by(target)) if type(target).__name__ in _ATTRIBUTES else None


def reads_number(target: object) -> bool:
    """Whether what a graph calls for NumPy gives an element of an array as a number."""
    return type(target).__name__ == "numpy_method_wrapper" and _called_by(target)[1] == "item"


def __getattr__(name: str) -> Callable[..., Any]:
    """A function by the name that it says it has here: torch pickles what graphs call by module and name."""
    for each, call in numpy_calls().items() if name.startswith(_flat(_NUMPY)) else ():
        if _flat(each) == name:
            return call
    raise AttributeError(name)


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _as_function(name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo's wrappers have names by which nobody finds them.
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(*args, **kwargs)

    call.__name__ = call.__qualname__ = _flat(name)
    return call


@functools.cache
def _wrappers() -> Mapping[str, Callable[..., Any]]:
    from torch._dynamo.utils import numpy_method_wrapper, numpy_operator_wrapper, numpy_to_tensor_wrapper

    functions = ((name, function) for name, function in _functions() if isinstance(function, FunctionType))
    return {
        **{name: numpy_to_tensor_wrapper(function) for name, function in functions},
        **{f"{_NUMPY}.ndarray.{name}": numpy_method_wrapper(name) for name in _METHODS.split()},
        **{f"{_NUMPY}.operator.{name}": numpy_operator_wrapper(getattr(operator, name)) for name in _OPERATORS.split()},
    }


def operator_behind(target: object) -> object:
    """Python's operator that a graph calls on arrays, and on whatever else it is given; None of what calls none."""
    return _operators().get(target)


def find_attribute(target: object, args: Sequence[object]) -> str | None:
    """The attribute that a graph reads of an array, if a tensor has the same by that name; else None."""
    if getattr(target, "__qualname__", "") != "numpy_attr_wrapper" or len(args) != 2:
        return None
    return str(args[1]) if args[1] in ("T", "ndim", "real", "shape") else None


def function_behind(target: object) -> object:
    """What torch computes one of NumPy's functions by; None of what is none of these."""
    return getattr(target, "f", None)


@functools.cache
def _operators() -> Mapping[object, object]:
    prefix = f"{_NUMPY}.operator."
    return {
        call: getattr(operator, name.removeprefix(prefix))
        for name, call in numpy_calls().items()
        if name.startswith(prefix)
    }


@functools.cache
def _names() -> Mapping[tuple[str, object], str]:
    names: dict[tuple[str, object], str] = {}
    for name, wrapper in _wrappers().items():
        # One function under several names has to have one key.
        names[_called_by(wrapper)] = min(name, names.get(_called_by(wrapper), name))
    return names


def _called_by(wrapper: Any) -> tuple[str, object]:
    kind = type(wrapper).__name__
    return kind, getattr(wrapper, _ATTRIBUTES[kind])


def _functions() -> Iterator[tuple[str, object]]:
    import torch._numpy

    for name in _FUNCTIONS.split():
        yield f"{_NUMPY}.{name}", operator.attrgetter(name)(torch._numpy)
