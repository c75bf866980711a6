"""Functions that start without being traced: what another process found out about them is installed where it holds, and
what had to be traced is published.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from compilefarm.client.announcements import (
    announce_comparison,
    announce_defect,
    announce_start,
    announce_unpublished,
)
from compilefarm.client.calling_convention import restoring_messages
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.programs import Program
from compilefarm.client.records import Ledger
from compilefarm.core.digests import digest_of
from compilefarm.core.dynamo_packages import GlobalKind, Lookup, Variant
from compilefarm.core.errors import FarmError, UnusableRequestFile
from compilefarm.core.interruptions import raise_interruption
from compilefarm.core.requests import Request, pack_request, unpack_request
from compilefarm.graph.bypass import Bypass

if TYPE_CHECKING:
    from compilefarm.packages.lookup_keys import LookupKey
    from compilefarm.packages.packing import Found, ProgramRecord
    from compilefarm.reuse.comparison import Finding
    from compilefarm.reuse.interception import Outcome, Programs
    from compilefarm.torch_internals.dynamo_frames import Frame, Trace

    Intercept = Callable[[Frame, Trace], Any]

NOTHING_STORED = "nothing is stored"


# Programs that are fetched before it is known whether their package holds.
_MOST_BEGUN = 4

# Begins to fetch what answers a request, and returns what waits for the program.
BeginRequest = Callable[[Request], Callable[[], Program]]


class _OfThread(threading.local):
    """What is known of the frame that a thread is at."""

    def __init__(self) -> None:
        self.settings = ""
        self.reason = ""
        self.key: LookupKey | None = None
        self.begun: dict[str, Callable[[], Program]] = {}
        self.found: Sequence[Found] = ()


class Starts:
    """Starts functions of one farm. Threads share it.

    Args:
        packages: those of the farm.
        begin_request: begins to fetch what answers a request, of which Dynamo checks what was found of its sizes, and
            returns what waits for the program.
        withdraw_package: tells the farm that a package is wrong, and returns what comes of it.
        ledger: where graphs are noted.
        publishes: whether what is traced is published.
        canary: fraction of processes that trace everything, compare it with packages that hold, and publish nothing.
    """

    def __init__(
        self,
        packages: FarmPackages,
        *,
        begin_request: BeginRequest,
        withdraw_package: Callable[..., str],
        ledger: Ledger,
        publishes: bool,
        canary: float = 0.0,
    ) -> None:
        from compilefarm.reuse.interception import Programs

        self._packages = packages
        self._begin_request = begin_request
        self._withdraw_package = withdraw_package
        self._ledger = ledger
        self._programs: dict[str, ProgramRecord] = {}
        self._of_thread = _OfThread()
        programs = Programs(
            is_ours=lambda _: True,
            settings_of=lambda _: self._of_thread.settings,
            key_of=self._key_of,
            load=self._load,
        )
        is_canary = random.random() < canary  # noqa: S311 - a sample
        self._intercept = self._canary(programs) if is_canary else self._interceptor(programs, publishes=publishes)

    def _interceptor(self, programs: Programs, *, publishes: bool) -> Intercept:
        from compilefarm.reuse.interception import Interceptor

        return Interceptor(
            self, programs=programs, publishes=publishes, on_outcome=self._note, on_unpublished=self._packages.refuse
        )

    def _canary(self, programs: Programs) -> Intercept:
        from compilefarm.reuse.canary import Canary

        return Canary(self, programs=programs, on_outcome=self._note)

    def start(self, frame: Frame, trace: Trace) -> Any:
        """Returns what stands for a frame that Dynamo is about to trace, or what tracing it returns."""
        from compilefarm.packages.descriptions import Undescribable

        state = self._of_thread
        state.reason, state.key, state.begun, state.found = "", None, {}, ()

        def noted() -> Any:
            with self._ledger.noting(f"traced: {state.reason}"):
                return trace()

        try:
            state.settings = _settings_of(frame)
        except Undescribable as error:
            state.reason = f"how torch.compile was called cannot be said: {error}"
            announce_start(frame.code.co_qualname, guards=0, reason=state.reason)
            return noted()
        return self._intercept(frame, noted)

    def find(self, lookup: Lookup, frame: Frame) -> Sequence[Variant]:
        """Returns the variants of a code object that may be installed here."""
        try:
            found = self._find(lookup, frame)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the function is traced
            raise_interruption(error)
            announce_defect(error, where="packages of Dynamo")
            self._of_thread.reason = f"a defect: {type(error).__name__}"
            return ()
        return [each.variant for each in found]

    def publish(self, lookup: Lookup, frame: Frame, variant: Variant) -> None:
        """Publishes a variant, if that can be done."""
        try:
            self._publish(lookup, frame, variant)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the function was traced
            raise_interruption(error)
            announce_defect(error, where="packages of Dynamo")

    def note_finding(self, frame: Frame, variant: Variant, finding: Finding) -> None:
        """Has a package withdrawn that says something else than a trace."""
        detail = finding.detail
        try:
            if finding.outcome == "differs":
                detail = f"in {detail}: {self._withdraw(frame, variant, detail)}"
            announce_comparison(frame.code.co_qualname, outcome=finding.outcome, detail=detail)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the function was traced
            raise_interruption(error)
            announce_defect(error, where="the comparison of a package with a trace")

    def _withdraw(self, frame: Frame, variant: Variant, detail: str) -> str:
        key = self._of_thread.key
        found = next((each for each in self._of_thread.found if each.variant is variant), None)
        if key is None or found is None:
            return "it is not known any more which it was"
        return self._withdraw_package(key.text, digest=found.digest, detail=f"{frame.code.co_qualname}: {detail}")

    def _begin(self, names: Iterable[str]) -> None:
        """Begins to fetch programs, while it is verified whether they may stand for what would be compiled here."""
        for name in islice(dict.fromkeys(names), _MOST_BEGUN):
            # What a program cannot be had for, a defect among that, is said where it is needed: `_load` begins anew.
            try:
                self._of_thread.begun[name] = self._begin_request(unpack_request(self._programs[name].request))
            except Exception as error:  # noqa: BLE001 - it is met again where the program is needed
                raise_interruption(error)

    def _find(self, lookup: Lookup, frame: Frame) -> Sequence[Found]:
        key = self._find_key(lookup, frame)
        if key is None:
            return ()
        answer = self._packages.find(key.text)
        self._of_thread.reason = answer.reasons[0] if answer.reasons else ""
        found = [each for each in answer.found if each.lookup == lookup]
        # Packages of others name programs, too: what is asked for under a digest has it.
        programs = {_name_of(program): program for each in found for program in each.programs.values()}
        self._programs |= programs
        self._of_thread.found = found
        self._begin(programs)
        return found if not found or self._is_torch_its_own() else ()

    def _is_torch_its_own(self) -> bool:
        """Whether a program of the farm stands for what this process would compile. It takes a while, so that it is
        asked where there is something to install."""
        from compilefarm.graph.ambient import require_own_torch

        try:
            require_own_torch()
        except Bypass as error:
            self._of_thread.reason = str(error)
            return False
        return True

    def _publish(self, lookup: Lookup, frame: Frame, variant: Variant) -> None:
        from compilefarm.packages.packing import Found

        key = self._of_thread.key
        if key is None or not self._is_torch_its_own():
            self._packages.refuse(frame.code.co_qualname, self._of_thread.reason)
            return
        names = {each.program for each in variant.globals if each.kind is GlobalKind.PROGRAM}
        found = Found(
            lookup=lookup,
            variant=variant,
            programs={name: self._programs[name] for name in names},
            key_parts=key.parts,
        )
        if reason := self._packages.publish(found):
            announce_unpublished(frame.code.co_qualname, reason)

    def _find_key(self, lookup: Lookup, frame: Frame) -> LookupKey | None:
        """The key as it is before the frame is traced, which may change what it is made of."""
        from compilefarm.packages.descriptions import Undescribable
        from compilefarm.packages.lookup_keys import lookup_key

        try:
            self._of_thread.key = lookup_key(
                lookup, code=frame.code, scope=frame.global_variables, local_variables=frame.local_variables
            )
        except (Undescribable, Bypass) as error:
            self._of_thread.reason = f"the model cannot be said: {error}"
        return self._of_thread.key

    def _key_of(self, program: Any) -> str | None:
        """The name of a program: the digest of how it is asked for; None if it is none of a farm.

        Raises:
            Unsayable: it cannot be asked for by another process.
        """
        from compilefarm.client.saving import SavableProgram
        from compilefarm.packages.packing import ProgramRecord
        from compilefarm.reuse.refusals import Unsayable

        if not isinstance(program, SavableProgram):
            return None
        try:
            encoded = program.encoded_with_guards()
            request = pack_request(Request(job=encoded.job, blobs=encoded.blobs))
        except (Bypass, UnusableRequestFile) as error:
            raise Unsayable(str(error)) from error
        record = ProgramRecord(request=request, messages=tuple(encoded.messages))
        name = _name_of(record)
        self._programs[name] = record
        return name

    def _load(self, name: str) -> Program:
        from compilefarm.reuse.refusals import Differs

        if name not in self._programs:
            raise Differs(f"its program has another digest than {name[:80]!r}")
        try:
            record = self._programs[name]
            begun = self._of_thread.begun.get(name) or self._begin_request(unpack_request(record.request))
            with self._ledger.noting("reused"):
                return restoring_messages(begun(), record.messages)
        except (Bypass, FarmError) as error:
            raise Differs(f"its program is not to be had: {error}") from error

    def _note(self, outcome: Outcome) -> None:
        """Notes what becomes of a frame, before it is traced if it is."""
        # Who looked for packages knows more than that there is none.
        if outcome.reason != NOTHING_STORED or not self._of_thread.reason:
            self._of_thread.reason = outcome.reason
        reason = "" if outcome.was_reused else self._of_thread.reason
        announce_start(outcome.function, guards=outcome.guards, reason=reason)


def _name_of(program: ProgramRecord) -> str:
    return digest_of(repr((digest_of(program.request), tuple(program.messages))).encode())


def _settings_of(frame: Frame) -> str:
    """How torch.compile was called, as far as it decides what is traced and compiled.

    Raises:
        Undescribable: code decides it. Nothing but this text is compared of it.
    """
    from compilefarm.packages.descriptions import Describer, Undescribable, is_data
    from compilefarm.torch_internals.dynamo_frames import backend_of

    arguments = dict(getattr(backend_of(frame), "kwargs", {}))
    arguments.pop("name", None)
    options = arguments.get("options")
    named = arguments | {"options": None} | options if type(options) is dict else arguments
    if code := next((name for name, value in named.items() if not is_data(value)), None):
        raise Undescribable(f"{code} is an object that may rest on anything in its process")
    return Describer(lambda found: type(found).__qualname__).describe(arguments)


# What starts the frames that a compiler function compiles; None if it is none of a farm that starts any.
Route = Callable[[Any], Starts | None]
_routes: list[Route] = []
_lock = threading.Lock()


def add_route(route: Route) -> None:
    """Has frames started by what a route finds. Imports torch."""
    with _lock:
        _routes.append(route)
        if len(_routes) == 1:
            from compilefarm.torch_internals.deferred_imports import import_debugging
            from compilefarm.torch_internals.dynamo_frames import intercept_frames

            import_debugging()
            intercept_frames(_start)


def _start(frame: Frame, trace: Trace) -> Any:
    from compilefarm.torch_internals.dynamo_frames import backend_of

    backend = backend_of(frame)
    compiler = getattr(backend, "compiler_fn", backend)
    starts = next((found for route in _routes if (found := route(compiler)) is not None), None)
    return trace() if starts is None else starts.start(frame, trace)
