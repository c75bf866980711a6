"""Functions that start without being traced: what another process found out about them is installed where it holds, and
what had to be traced is published.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compilefarm.client.announcements import announce_defect, announce_start, announce_unpublished
from compilefarm.client.calling_convention import restoring_messages
from compilefarm.client.farm_packages import FarmPackages
from compilefarm.client.programs import Program
from compilefarm.client.records import Ledger
from compilefarm.core.digests import digest_of
from compilefarm.core.dynamo_packages import GlobalKind, Lookup, Variant
from compilefarm.core.errors import FarmError, UnusableRequestFile
from compilefarm.core.requests import Request, pack_request, unpack_request
from compilefarm.graph.bypass import Bypass

if TYPE_CHECKING:
    from compilefarm.packages.lookup_keys import LookupKey
    from compilefarm.packages.packing import Found, ProgramRecord
    from compilefarm.reuse.interception import Outcome
    from compilefarm.torch_internals.dynamo_frames import Frame, Trace

NOTHING_STORED = "nothing is stored"


class _OfThread(threading.local):
    """What is known of the frame that a thread is at."""

    settings = ""
    reason = ""
    key: LookupKey | None = None


class Starts:
    """Starts functions of one farm. Threads share it.

    Args:
        packages: those of the farm.
        compile_request: returns the program for a request, of which Dynamo checks what was found of its sizes.
        ledger: where graphs are noted.
        publishes: whether what is traced is published.
    """

    def __init__(
        self,
        packages: FarmPackages,
        *,
        compile_request: Callable[[Request], Program],
        ledger: Ledger,
        publishes: bool,
    ) -> None:
        from compilefarm.reuse.interception import Interceptor, Programs

        self._packages = packages
        self._compile_request = compile_request
        self._ledger = ledger
        self._programs: dict[str, ProgramRecord] = {}
        self._of_thread = _OfThread()
        self._intercept = Interceptor(
            self,
            programs=Programs(
                is_ours=lambda _: True,
                settings_of=lambda _: self._of_thread.settings,
                key_of=self._key_of,
                load=self._load,
            ),
            publishes=publishes,
            on_outcome=self._note,
            on_unpublished=packages.refuse,
        )

    def start(self, frame: Frame, trace: Trace) -> Any:
        """Returns what stands for a frame that Dynamo is about to trace, or what tracing it returns."""
        from compilefarm.packages.descriptions import Undescribable

        state = self._of_thread
        state.reason, state.key = "", None

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
            announce_defect(error, where="packages of Dynamo")
            self._of_thread.reason = f"a defect: {type(error).__name__}"
            return ()
        # Packages of others name programs, too: what is asked for under a digest has it.
        self._programs |= {_name_of(program): program for each in found for program in each.programs.values()}
        return [each.variant for each in found]

    def publish(self, lookup: Lookup, frame: Frame, variant: Variant) -> None:
        """Publishes a variant, if that can be done."""
        try:
            self._publish(lookup, frame, variant)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the function was traced
            announce_defect(error, where="packages of Dynamo")

    def _find(self, lookup: Lookup, frame: Frame) -> Sequence[Found]:
        key = self._find_key(lookup, frame)
        if key is None:
            return ()
        answer = self._packages.find(key.text)
        self._of_thread.reason = answer.reasons[0] if answer.reasons else ""
        return [each for each in answer.found if each.lookup == lookup]

    def _publish(self, lookup: Lookup, frame: Frame, variant: Variant) -> None:
        from compilefarm.packages.packing import Found

        key = self._of_thread.key
        if key is None:
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
            with self._ledger.noting("reused"):
                return restoring_messages(self._compile_request(unpack_request(record.request)), record.messages)
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
    """How torch.compile was called, as far as it decides what is traced and compiled."""
    from compilefarm.packages.descriptions import Describer
    from compilefarm.torch_internals.dynamo_frames import backend_of

    arguments = dict(getattr(backend_of(frame), "kwargs", {}))
    arguments.pop("name", None)
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
            from compilefarm.torch_internals.dynamo_frames import intercept_frames

            intercept_frames(_start)


def _start(frame: Frame, trace: Trace) -> Any:
    from compilefarm.torch_internals.dynamo_frames import backend_of

    backend = backend_of(frame)
    compiler = getattr(backend, "compiler_fn", backend)
    starts = next((found for route in _routes if (found := route(compiler)) is not None), None)
    return trace() if starts is None else starts.start(frame, trace)
