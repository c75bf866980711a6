"""Compares ways for one model: rounds of fresh processes, each round all ways in turn."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from compilefarm.benchmarks.alternatives import ALTERNATIVES, MAKERS, Alternative
from compilefarm.benchmarks.farms import FarmNotReady, serving, wait_until_quiet
from compilefarm.benchmarks.redis_server import REDIS_URL, serving_redis, why_no_redis
from compilefarm.benchmarks.report import Measured
from compilefarm.benchmarks.results import Result
from compilefarm.benchmarks.runner import Subject, run_process
from compilefarm.client.config import ADDRESS, PACKAGE_SIGNING_KEY, TRUSTED_PACKAGE_KEYS
from compilefarm.core.signatures import new_signing_key

# Of the farm that keeps torch's own caches, and packages of Dynamo.
_KEEPING = ("--cache-size-limit", "1GB")


class RunProcess(Protocol):
    """Goes a way in a process; run_process does."""

    def __call__(
        self, way: str, subject: Subject, *, caches: Path, bundle: Path, variables: Mapping[str, str], log: Path
    ) -> Result:
        """See run_process."""


# Told how each process went: the name of its way, and what it measured.
OnResult = Callable[[str, Result], None]
# Told what is known, whenever that is more.
OnProgress = Callable[[list[Measured]], object]


def compare(
    subject: Subject,
    *,
    ways: Sequence[str],
    rounds: int,
    folder: Path,
    on_result: OnResult,
    on_progress: OnProgress = lambda _: None,
    run: RunProcess = run_process,
) -> list[Measured]:
    """Measures ways.

    Args:
        subject: the model.
        ways: names of ALTERNATIVES.
        rounds: how often.
        folder: for all that is made; what the processes say is in its file "log".
        on_result: told after each process.
        on_progress: told what is known after each way.
        run: starts the processes.
    """
    measured = {name: Measured(model=subject.model, way=name) for name in ways}
    with _Runs(subject, folder=folder, on_result=on_result, run=run) as runs:
        # Nobody is to pay for reading torch from the disk.
        first = runs.run("warm-up", ALTERNATIVES["eager"])
        if first.error:
            return [Measured(model=subject.model, way=name, reason=first.error) for name in ways]
        for _ in range(rounds):
            for name in (name for name in ALTERNATIVES if name in ways):
                way = measured[name]
                if not way.reason:
                    _add(way, runs.measure(name))
                    on_progress(list(measured.values()))
    return list(measured.values())


def _add(way: Measured, result: Result) -> None:
    if result.error:
        way.reason = result.error
    else:
        way.results.append(result)


class _Runs:
    """Runs alternatives, and before them what makes what they load, once."""

    def __init__(self, subject: Subject, *, folder: Path, on_result: OnResult, run: RunProcess) -> None:
        self._subject = subject
        self._folder = folder
        self._on_result = on_result
        self._run_process = run
        self._made: dict[str, Result] = {}
        self._number = 0
        self._programs = contextlib.ExitStack()
        self._farm_programs = contextlib.ExitStack()
        self._farm = ""
        self._cache_farm = ""
        self._publisher = new_signing_key()
        self._redis = ""

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._farm_programs.close()
        self._programs.close()

    def measure(self, name: str) -> Result:
        """Runs an alternative."""
        alternative = ALTERNATIVES[name]
        if alternative.redis and (reason := why_no_redis()):
            return Result(error=reason)
        if alternative.made_by and alternative.made_by not in self._made:
            self._make(alternative.made_by)
        if alternative.made_by and (made := self._made[alternative.made_by]).error:
            return Result(error=made.error)
        result = self.run(name, alternative)
        self._made[name] = result
        return result

    def _make(self, name: str) -> None:
        self._made[name] = self.run(name, MAKERS.get(name) or ALTERNATIVES[name])

    def run(self, name: str, alternative: Alternative) -> Result:
        """Runs an alternative without anything that it may need."""
        try:
            services = self._services(alternative)
        except FarmNotReady as error:
            return Result(error=str(error))
        with self._caches(name, alternative) as caches:
            result = self._run_process(
                alternative.process,
                self._subject,
                caches=caches,
                bundle=self._bundle(alternative.made_by or name),
                variables={**alternative.environment(self._subject.device), **services},
                log=self._folder / "log",
            )
        self._on_result(name, result)
        return result

    @contextlib.contextmanager
    def _caches(self, name: str, alternative: Alternative) -> Iterator[Path]:
        if alternative.keeps_caches:
            yield self._bundle(alternative.made_by) / "caches"
            return
        # Who is followed by a way that keeps them has its latest ones kept.
        kept = any(other.keeps_caches and other.made_by == name for other in ALTERNATIVES.values())
        self._number += 1
        caches = self._bundle(name) / "caches" if kept else self._folder / f"caches-{self._number}"
        shutil.rmtree(caches, ignore_errors=True)
        yield caches
        if not kept:
            shutil.rmtree(caches, ignore_errors=True)

    def _bundle(self, name: str) -> Path:
        return self._folder / "made" / name

    def _services(self, alternative: Alternative) -> dict[str, str]:
        found = {}
        if alternative.redis:
            self._redis = self._redis or self._programs.enter_context(serving_redis(self._folder / "redis"))
            found[REDIS_URL] = self._redis
        if alternative.farm == "caches":
            self._cache_farm = self._cache_farm or self._start_cache_farm()
            wait_until_quiet(self._cache_farm)
            found |= {ADDRESS: self._cache_farm, **self._package_keys()}
        elif alternative.farm:
            if alternative.farm == "fresh" or not self._farm:
                self._start_farm()
            wait_until_quiet(self._farm)
            found[ADDRESS] = self._farm
        return found

    def _package_keys(self) -> dict[str, str]:
        """What packages are signed with, and trusted by."""
        file = self._folder / "publisher.pem"
        if not file.exists():
            file.write_bytes(self._publisher.pem())
        return {PACKAGE_SIGNING_KEY: str(file), TRUSTED_PACKAGE_KEYS: self._publisher.public.text}

    def _start_cache_farm(self) -> str:
        """One of its own: the other begins anew in every round."""
        place = self._folder / "cache-farm"
        return self._programs.enter_context(serving(place, device=self._subject.device, options=_KEEPING))

    def _start_farm(self) -> None:
        self._farm_programs.close()
        shutil.rmtree(self._folder / "farm", ignore_errors=True)
        self._farm = self._farm_programs.enter_context(serving(self._folder / "farm", device=self._subject.device))
