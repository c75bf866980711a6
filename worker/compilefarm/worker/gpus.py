"""The GPUs that an interpreter can compile on: `python -m compilefarm.worker.gpus` prints how many there are.

The driver is asked and torch is not imported, since that takes seconds which the start of a farm would wait for. It is
a program, since each interpreter has a torch of its own.
"""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
import sys
from pathlib import Path

_DRIVER = "libcuda.so.1"
# cuda.h: CUDA_ERROR_NO_DEVICE. Also where CUDA_VISIBLE_DEVICES is empty.
_NO_DEVICE = 100


def count_gpus() -> int:
    """Returns how many GPUs the driver shows to torch, with regard to CUDA_VISIBLE_DEVICES.

    Returns:
        0 also where there is no driver, or where the torch of this interpreter is built without CUDA.

    Raises:
        RuntimeError: there is no torch, or the driver does not work.
    """
    if not _is_built_for_cuda():
        return 0
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    answer, count = driver.cuInit(0), ctypes.c_int()
    if answer == _NO_DEVICE:
        return 0
    answer = answer or driver.cuDeviceGetCount(ctypes.byref(count))
    if answer:
        raise RuntimeError(f"the driver of the GPU answers with error {answer} (see CUresult in cuda.h)")
    return count.value


def _is_built_for_cuda() -> bool:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RuntimeError("there is no torch; install it for this interpreter")
    return runpy.run_path(str(Path(found.origin).with_name("version.py")))["cuda"] is not None


if __name__ == "__main__":
    try:
        print(count_gpus())
    except RuntimeError as error:
        sys.exit(str(error))
