"""Tables of the check: right programs through Inductor, of which it refuses none, and mistakes, which it finds.

python -m tests.worker [--device cuda] [--jobs 8] [--kinds right large wrong] [--only TEXT]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.worker.table import KINDS, Row, Task, row_of, tasks_of


def main() -> int:
    """Prints a line for each program, and counts. The exit status is 1 if there was a surprise."""
    options = _options()
    for name in ("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // options.jobs)))
    tasks = [task for task in tasks_of(device=options.device, kinds=set(options.kinds)) if options.only in task.name]
    rows = []
    with tempfile.TemporaryDirectory(prefix="detection-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for row in _rows(tasks, jobs=options.jobs):
            rows.append(row)
            print(_line(row), flush=True)
    print(_summary(rows))
    return 1 if any(row.surprises for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.worker")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--only", default="", help="part of the names of programs")
    return parser.parse_args()


def _rows(tasks: Sequence[Task], *, jobs: int) -> Iterator[Row]:
    # A process that has used a GPU cannot be forked.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(row_of, task): task for task in tasks}
        for done in as_completed(running):
            error = done.exception()
            if error is None:
                yield done.result()
            else:
                yield Row(task=running[done], tried=1, surprises=[f"failed: {type(error).__name__}: {error}"])


def _line(row: Row) -> str:
    said = "; ".join(row.surprises) or (f"{row.error:.2f} of what is allowed" if row.task.kind != "wrong" else "found")
    return f"{row.task.kind:6} {row.task.name:45} {row.tried:3} {row.seconds:7.1f} s  {said}"


def _summary(rows: Sequence[Row]) -> str:
    right, wrong = ([row for row in rows if (row.task.kind == "wrong") is is_wrong] for is_wrong in (False, True))
    mistakes, missed = sum(row.tried for row in wrong), sum(len(row.surprises) for row in wrong)
    refused = sum(len(row.surprises) for row in right)
    return f"{refused} refusals of {len(right)} right programs, {mistakes - missed} of {mistakes} mistakes found"


if __name__ == "__main__":
    sys.exit(main())
