"""The tensors that a caller may upload: only those that its requests were missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from compilefarm.core.errors import FarmError, MissingBlobs, NotWanted
from compilefarm.service.callers import Caller
from compilefarm.v1.job_pb2 import Job

_MOST_DIGESTS = 65_536
# Of all accounts: about 150 MB.
_MOST_DIGESTS_OF_ALL = 8 * _MOST_DIGESTS
# Where nobody is asked who calls, accounts are addresses, of which one caller may have any number.
_MOST_ACCOUNTS = 10_000


class WantedBlobs:
    """The digests of tensors that jobs of each account were missing; those of the latest jobs, and of the accounts that
    asked last. They are learned from refusals.
    """

    def __init__(self) -> None:
        self._digests: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        # Of all accounts; to count them each time would keep everybody waiting.
        self._count = 0

    def refused(self, job: Job, *, caller: Caller, error: FarmError) -> None:
        """See RefusalObserver.refused."""
        if isinstance(error, MissingBlobs):
            self._note((held.digest for held in job.graph.constants), account=caller.account)

    def require_wanted(self, digest: str, *, account: str) -> None:
        """Passes if an account may send a blob.

        Raises:
            NotWanted: no job of it has missed that.
        """
        if digest not in self._digests.get(account, {}):
            raise NotWanted(
                f"no request for a compile of this caller was missing {digest}: ask for the compile first, send what "
                "it says is missing, and ask again; a client that sends first is older than the farm: upgrade it"
            )

    def _note(self, digests: Iterable[str], *, account: str) -> None:
        """Notes that a job of an account was missing tensors."""
        own = self._digests.setdefault(account, OrderedDict())
        self._digests.move_to_end(account)
        before = len(own)
        for digest in digests:
            own[digest] = None
            own.move_to_end(digest)
        while len(own) > _MOST_DIGESTS:
            own.popitem(last=False)
        self._count += len(own) - before
        while self._count > _MOST_DIGESTS_OF_ALL or len(self._digests) > _MOST_ACCOUNTS:
            _, forgotten = self._digests.popitem(last=False)
            self._count -= len(forgotten)
