"""Errors between a client and the farm.

    FarmError
    ├── InvalidRequest          INVALID_ARGUMENT     the request contradicts itself or names what is not allowed
    │   ├── DigestMismatch                           bytes that are not what their digest says
    │   └── OutOfRange          OUT_OF_RANGE         an offset beyond the end of a blob
    ├── NotStored               NOT_FOUND            nothing is stored under that key or digest
    ├── NoSuchJob               NOT_FOUND            no job has that key
    ├── NoMatchingWorker        FAILED_PRECONDITION  no worker can compile for that environment
    ├── MissingBlobs            FAILED_PRECONDITION  the graph's tensors were not sent first
    ├── NotWanted               FAILED_PRECONDITION  a tensor that no job was missing
    ├── ReadOnlyFarm            FAILED_PRECONDITION  nothing is stored, and the farm makes nothing
    ├── NoCaches                FAILED_PRECONDITION  the farm keeps no entries of torch's caches
    ├── Busy                    RESOURCE_EXHAUSTED   the queue, or the caller's share of it, is full
    ├── StoreFull               RESOURCE_EXHAUSTED   the store, or the caller's share of it, has no room
    ├── TooSlow                 ABORTED              the other end of a stream sent or read too slowly
    ├── JobCancelled            ABORTED              an operator ended the job
    ├── Draining                UNAVAILABLE          the service is going down
    ├── WorkerLost              UNAVAILABLE          workers died on this job again and again
    │   └── ProcessDied                              the process that had the job died, perhaps of it
    ├── StoreUnavailable        UNAVAILABLE          the store cannot be read or written
    │   └── SignerUnavailable                        the process that has the signing key does not sign
    ├── NotAllowed              PERMISSION_DENIED    the caller may not do that
    │   └── NotAuthenticated    UNAUTHENTICATED      the caller did not say who it is
    ├── InternalError           INTERNAL             a defect; strangers see an incident number only
    ├── CorruptArtifact         (client only)        what was fetched is not what the manifest says
    ├── UntrustedArtifact       (client only)        no key that the client trusts has signed it
    ├── IncompatibleArtifact    (client only)        the artifact does not fit this machine
    ├── UnusableFolder          (client only)        there is no place for temporary files, or none for libraries
    ├── Unreachable             (client only)        nobody answers at the address
    │   └── Silent                                   whoever answers there says nothing more
    ├── NotAFarm                (client only)        a server other than a compile farm answers
    ├── OutOfTime               (client only)        the client's time budget is spent
    ├── UnusableRecording       (client only)        a recording cannot be read or written
    │   ├── NotARecording                            there is none
    │   ├── NewerRecording                           a later release wrote it
    │   └── DamagedRecording                         a part of it is missing, or was changed
    └── UnusableRequestFile     (client only)        a file cannot be read as a request, or not be written
        ├── NotARequestFile                          it is something else
        ├── NewerRequestFile                         a later release wrote it
        ├── TruncatedRequestFile                     its end is missing
        ├── DamagedRequestFile                       its content was changed
        └── IncompleteRequestFile                    a tensor that the graph holds is missing

An error carries what happened and the remedy in its message, and says for each end what it becomes: `status` is the
gRPC status, `reason` the machine-readable word that travels beside it (trailing metadata REASON_KEY). A failed compile
is no error: it is a result (compilefarm.v1.CompileFailure).
"""

from __future__ import annotations

from typing import ClassVar

REASON_KEY = "compilefarm-reason"
RETRY_AFTER_KEY = "compilefarm-retry-after-seconds"
ESTIMATED_WAIT_KEY = "compilefarm-estimated-wait-seconds"


class FarmError(Exception):
    """Root of the tree."""

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "farm_error"


class InvalidRequest(FarmError):
    """The request contradicts itself or names what is not allowed."""

    status = "INVALID_ARGUMENT"
    reason = "invalid_request"


class DigestMismatch(InvalidRequest):
    """Bytes do not have the digest that was given for them."""

    reason = "digest_mismatch"


class OutOfRange(InvalidRequest):
    """A read begins beyond the end of a blob."""

    status = "OUT_OF_RANGE"
    reason = "out_of_range"


class NotStored(FarmError):
    """Nothing is stored under that key or digest."""

    status = "NOT_FOUND"
    reason = "not_stored"


class NoSuchJob(FarmError):
    """No job has that key."""

    status = "NOT_FOUND"
    reason = "no_such_job"


class NoMatchingWorker(FarmError):
    """No worker can compile for that environment; the message names what differs."""

    status = "FAILED_PRECONDITION"
    reason = "no_matching_worker"


class MissingBlobs(FarmError):
    """The graph refers to tensors that were not sent first."""

    status = "FAILED_PRECONDITION"
    reason = "missing_blobs"


class NotWanted(FarmError):
    """A tensor was sent that no job of the caller was missing."""

    status = "FAILED_PRECONDITION"
    reason = "not_wanted"


class ReadOnlyFarm(FarmError):
    """Nothing that fits is stored, and the farm serves a store that it may not write."""

    status = "FAILED_PRECONDITION"
    reason = "read_only"


class NoCaches(FarmError):
    """The farm keeps no entries of torch's own caches, and no packages."""

    status = "FAILED_PRECONDITION"
    reason = "no_caches"


class StoreFull(FarmError):
    """The store, or the caller's share of it, has no room for an upload."""

    status = "RESOURCE_EXHAUSTED"
    reason = "store_full"


class TooSlow(FarmError):
    """The other end of a stream sent or read too slowly."""

    status = "ABORTED"
    reason = "too_slow"


class Busy(FarmError):
    """The queue, or the caller's share of it, is full.

    Attributes:
        retry_after_seconds: when there will probably be room.
        estimated_wait_seconds: how long the job would probably wait for a worker if there were; zero if not known.
    """

    status = "RESOURCE_EXHAUSTED"
    reason = "busy"

    def __init__(self, message: str, *, retry_after_seconds: float, estimated_wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.estimated_wait_seconds = estimated_wait_seconds


class JobCancelled(FarmError):
    """An operator ended the job, or nobody waited for it any more."""

    status = "ABORTED"
    reason = "job_cancelled"


class Draining(FarmError):
    """The service is going down."""

    status = "UNAVAILABLE"
    reason = "draining"


class WorkerLost(FarmError):
    """Workers were lost on this job more often than the service retries."""

    status = "UNAVAILABLE"
    reason = "worker_lost"


class ProcessDied(WorkerLost):
    """The process that had the job died. The job itself may be what ended it."""

    reason = "process_died"


class StoreUnavailable(FarmError):
    """The store cannot be read or written."""

    status = "UNAVAILABLE"
    reason = "store_unavailable"


class SignerUnavailable(StoreUnavailable):
    """The process that has the signing key does not answer, or refuses: what is made cannot be stored."""

    reason = "signer_unavailable"


class NotAllowed(FarmError):
    """The caller may not do that."""

    status = "PERMISSION_DENIED"
    reason = "not_allowed"


class NotAuthenticated(NotAllowed):
    """The caller did not say who it is."""

    status = "UNAUTHENTICATED"
    reason = "not_authenticated"


class InternalError(FarmError):
    """A defect of the service; the message has an incident number, under which the log of the service has the error."""

    reason = "internal"


class CorruptArtifact(FarmError):
    """What was fetched is not what the manifest says."""

    reason = "corrupt_artifact"


class UntrustedArtifact(FarmError):
    """None of the keys that this client trusts has signed the artifact for this graph."""

    reason = "untrusted_artifact"


class IncompatibleArtifact(FarmError):
    """The artifact does not fit this machine; the message names what differs."""

    reason = "incompatible_artifact"


class UnusableFolder(FarmError):
    """Temporary files cannot be written (no room, no rights), or libraries not be loaded from there (noexec)."""

    reason = "unusable_folder"


class Unreachable(FarmError):
    """Nobody answers at the address."""

    reason = "unreachable"


class Silent(Unreachable):
    """The farm accepted a request and has not said anything since."""

    reason = "silent"


class NotAFarm(FarmError):
    """A server other than a compile farm answers at the address."""

    reason = "not_a_farm"


class OutOfTime(FarmError):
    """The graph has spent timeout_seconds on the farm."""

    reason = "out_of_time"


class UnusableRecording(FarmError):
    """A recording cannot be read or written."""

    reason = "unusable_recording"


class NotARecording(UnusableRecording):
    """The folder holds no recording."""

    reason = "not_a_recording"


class NewerRecording(UnusableRecording):
    """A later release wrote the recording, in a format that this one does not know."""

    reason = "newer_recording"


class DamagedRecording(UnusableRecording):
    """A part of the recording is missing, or was changed."""

    reason = "damaged_recording"


class UnusableRequestFile(FarmError):
    """A file cannot be read as a request, or not be written as one."""

    reason = "unusable_request_file"


class NotARequestFile(UnusableRequestFile):
    """The file is not a request file."""

    reason = "not_a_request_file"


class NewerRequestFile(UnusableRequestFile):
    """A later release wrote the file, in a format that this one does not know."""

    reason = "newer_request_file"


class TruncatedRequestFile(UnusableRequestFile):
    """The end of the file is missing."""

    reason = "truncated_request_file"


class DamagedRequestFile(UnusableRequestFile):
    """The content of the file was changed, or never was a request."""

    reason = "damaged_request_file"


class IncompleteRequestFile(UnusableRequestFile):
    """A tensor that the graph holds is missing."""

    reason = "incomplete_request_file"


def _tree(root: type[FarmError]) -> list[type[FarmError]]:
    return [root, *(below for child in root.__subclasses__() for below in _tree(child))]


BY_REASON: dict[str, type[FarmError]] = {error.reason: error for error in _tree(FarmError)}
