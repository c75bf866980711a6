"""Variables of a Ray that the farm starts for itself. This module does not import Ray."""

from __future__ import annotations

import os
import secrets
import sys


def keep_to_this_host() -> None:
    """Has the Ray that this process starts listen on 127.0.0.1 alone, ask for a token, and tell nobody of its use.

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
    )
