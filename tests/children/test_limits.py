from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from compilefarm.worker.limits import TimeLimitExceeded, time_limit


def _count_for_ever() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # noqa: BLE001 - as torch does at places
            continue


def test_work_without_end_is_ended_even_if_it_takes_every_error_for_its_own() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TimeLimitExceeded, match="counting takes more than 0 s"), time_limit(0.05, doing="counting"):
        _count_for_ever()
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_work_that_ends_in_time_is_left_alone() -> None:
    with time_limit(60, doing="nothing"):
        pass
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_work_that_does_not_return_to_python_ends_its_process() -> None:
    program = (
        "import hashlib\n"
        "from compilefarm.worker.limits import time_limit\n"
        "with time_limit(0.1, doing='hashing', grace_seconds=0.1):\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=100).returncode == -signal.SIGPROF


def test_memory_is_limited_for_a_while() -> None:
    program = (
        "from compilefarm.worker.limits import memory_limit\n"
        "try:\n"
        "    with memory_limit(50_000_000):\n"
        "        [0] * 20_000_000\n"
        "except MemoryError:\n"
        "    print('refused', len([0] * 20_000_000))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "refused 20000000\n"


def test_memory_beyond_the_limit_is_not_to_be_had() -> None:
    program = (
        "from compilefarm.worker.limits import limit_memory\n"
        "limit_memory(200_000_000)\n"
        "kept = bytearray(100_000_000)\n"
        "try:\n"
        "    bytearray(300_000_000)\n"
        "except MemoryError:\n"
        "    print('refused')\n"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "refused\n"
    )
