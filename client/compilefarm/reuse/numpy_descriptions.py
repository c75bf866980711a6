"""Descriptions of what NumPy has for constants: dtypes, what is known of them, and functions at their places.

Dynamo has functions of torch in their place, or calls them while it traces. NumPy's version is compared (states.py).
"""

from __future__ import annotations

import sys
from typing import Any

from compilefarm.reuse.names_in_code import value_at
from compilefarm.reuse.refusals import Unsayable


def describe_of_numpy(value: Any) -> str:
    """Describes an object of a class of NumPy.

    Raises:
        Unsayable: there is nothing by which another process could find its like.
    """
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.dtype):
        return f"dtype:{_name_of_dtype(value)}"
    if type(value) is numpy.finfo or type(value) is numpy.iinfo:
        return f"{type(value).__name__}:{_name_of_dtype(value.dtype)}"
    if type(value) is numpy.ufunc and value_at("numpy", value.__name__) is value:
        return f"ufunc:{value.__name__}"
    raise Unsayable(f"an object of type {type(value).__module__}.{type(value).__qualname__}")


def _name_of_dtype(dtype: Any) -> str:
    # Of one that NumPy brings along; others have fields, a size, or a library that they are of.
    if dtype.isbuiltin != 1 or dtype.metadata:
        raise Unsayable(f"the dtype {dtype} of numpy, which is none of its own")
    return str(dtype.str)
