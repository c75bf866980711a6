"""Variables of a Ray that the farm starts for itself. This module does not import Ray."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile

# A socket's path has at most 107 bytes, of which Ray takes some 70.
_SHORT = "/tmp"  # noqa: S108 - a folder of its own is made there


def keep_to_this_host() -> None:
    """Has the Ray that this process starts listen on 127.0.0.1 alone, ask for a token, keep its sockets from other
    users of this host, and tell nobody of its use.

    Raises:
        RuntimeError: Ray was imported before, and has read its variables.
    """
    if "ray" in sys.modules:
        raise RuntimeError("Ray was imported before its variables were set; start the farm in a process of its own")
    os.environ.update(
        # The address of a node is then 127.0.0.1, and its processes bind to that (ray/_private/services.py:
        # get_node_ip_address); `_node_ip_address` is replaced by the address of the network card.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_TMPDIR=_private_folder(),
    )


def _private_folder() -> str:
    """A folder for Ray's logs and sockets, which goes with this process. Ray's own lies in /tmp and is everybody's to
    write, who could put other sockets in the place of those by which its processes find each other.
    """
    folder = tempfile.mkdtemp(prefix="compilefarm-", dir=_SHORT)
    # What has been registered first is done last: Ray ends before.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
