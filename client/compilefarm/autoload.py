"""What torch calls at the end of its import, in every process where Compilefarm is installed (entry point
`torch.backends`; torch/__init__.py, _import_device_backends). An error here would keep torch from being imported.
"""

from __future__ import annotations

import os


def load() -> None:
    """Has torch's own caches ask a farm if COMPILEFARM_TORCH_CACHES is set, and begins with imports in a thread if
    COMPILEFARM_WARM is; imports nothing otherwise."""
    if os.environ.get("COMPILEFARM_WARM") == "yes":
        from compilefarm.warming import warm

        warm()
    if os.environ.get("COMPILEFARM_TORCH_CACHES"):
        from compilefarm.client.torch_caches import install_or_announce

        install_or_announce()
