"""Tables of the check: right programs through Inductor, of which it refuses none, and mistakes, which it finds.

python -m tests.worker [--device cuda] [--jobs 8] [--kinds right large wrong operators corpus] [--only TEXT ...]
                       [--seconds 500] [--part 1/4] [--samples 2] [--dynamic] [--uncompiled]

"operators" are PyTorch's own samples for its operators, by dtype (`--only "float32 training"`), and "corpus" are the
programs of tests/corpus: both go all the way from a pod to a pod, in one process. With --uncompiled no
kernels are made, and an operator takes a quarter of a second. The last lines of their table say how many graphs are
served, how many of these are right, and which operators are not served, by reason.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.worker.single_process import Outcome
from tests.worker.table import KINDS, Row, Task, tasks_of
from tests.worker.trials import rows_of

_LONGEST_LINE = 400
# Where nothing was captured.
_NO_GRAPH = frozenset({"nothing to try", "eager fails", "Dynamo fails", "no graph"})
# What the pod gets a program for; one that computes nothing but what Inductor computes everywhere is among them.
_SERVED = frozenset(
    outcome.value
    for outcome in (Outcome.RIGHT, Outcome.UNSEEN, Outcome.UNCHECKED, Outcome.INDUCTOR_WRONG_UNSEEN, Outcome.WRONG)
)


def main() -> int:
    """Prints a line for each program, and counts. The exit status is 1 if there was a surprise."""
    options = _options()
    for name in ("TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // options.jobs)))
    tasks = _tasks(options)
    rows = []
    with tempfile.TemporaryDirectory(prefix="detection-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for row in rows_of(tasks, jobs=options.jobs, seconds=options.seconds):
            rows.append(row)
            print(_line(row), flush=True)
    for line in _summary(rows):
        print(line)
    if len(rows) < len(tasks):
        print(f"{len(tasks) - len(rows)} of {len(tasks)} are left: there was no more time")
    return 1 if any(row.surprises for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.worker")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=("right", "large", "wrong"))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of programs: those that have one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more programs are begun after that")
    parser.add_argument("--part", type=_part, default=(1, 1), help="2/4: every fourth program, from the second")
    parser.add_argument("--samples", type=int, default=1, help="how many samples of an operator are tried")
    parser.add_argument("--dynamic", action="store_true", help="trace operators for all sizes of their inputs")
    parser.add_argument("--uncompiled", action="store_true", help="run Inductor's operators, without kernels")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise ValueError(text)
    return int(number), int(count)


def _tasks(options: argparse.Namespace) -> Sequence[Task]:
    number, count = options.part
    tasks = tasks_of(device=options.device, kinds=set(options.kinds))
    chosen = [task for task in tasks if any(part in task.name for part in options.only)][number - 1 :: count]
    how = {"samples": options.samples, "compiles": not options.uncompiled, "dynamic": options.dynamic}
    return [replace(task, **how) for task in chosen]


def _line(row: Row) -> str:
    said = "; ".join(row.surprises or [_said(row)]).replace("\n", " ")
    return f"{row.task.kind:6} {row.task.name:45} {row.tried:3} {row.seconds:7.1f} s  {said[:_LONGEST_LINE]}"


def _said(row: Row) -> str:
    if row.outcomes:
        return " / ".join(filter(None, [", ".join(row.outcomes), row.message]))
    return f"{row.error:.2f} of what is allowed" if row.task.kind != "wrong" else "found"


def _summary(rows: Sequence[Row]) -> list[str]:
    outcomes = Counter(outcome for row in rows for outcome in row.outcomes)
    lines = [f"{count:5} {outcome}" for outcome, count in sorted(outcomes.items(), key=lambda each: -each[1])]
    programs = [row for row in rows if not row.outcomes]
    if len(programs) < len(rows):
        surprises = sum(bool(row.surprises) for row in rows if row.outcomes)
        lines.append(f"{surprises} surprises in {len(rows) - len(programs)} operators and programs of the corpus")
        lines += service_of(rows)
    return [*lines, _summary_of_programs(programs)] if programs else lines


def service_of(rows: Sequence[Row]) -> list[str]:
    """Lines that say how many graphs are served and right, and by reason which programs have one that is not served."""
    asked = [(outcome, row) for row in rows for outcome in row.outcomes if outcome not in _NO_GRAPH]
    refused: dict[str, list[str]] = {}
    for outcome, row in asked:
        if outcome not in _SERVED:
            refused.setdefault(outcome, []).append(row.task.name)
    served = [outcome for outcome, _ in asked if outcome in _SERVED]
    wrong = sum(outcome == Outcome.WRONG.value for outcome, _ in asked)
    return [
        f"{len(served)} of {len(asked)} graphs are served ({_percentage(len(served), len(asked))}), {wrong} are wrong",
        *(f"not served, {outcome}: {', '.join(sorted(set(names)))}" for outcome, names in sorted(refused.items())),
    ]


def _percentage(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def _summary_of_programs(rows: Sequence[Row]) -> str:
    right, wrong = ([row for row in rows if (row.task.kind == "wrong") is is_wrong] for is_wrong in (False, True))
    mistakes, missed = sum(row.tried for row in wrong), sum(len(row.surprises) for row in wrong)
    refused = sum(len(row.surprises) for row in right)
    return f"{refused} refusals of {len(right)} right programs, {mistakes - missed} of {mistakes} mistakes found"


if __name__ == "__main__":
    sys.exit(main())
