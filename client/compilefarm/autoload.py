"""What torch calls at the end of its import, in every process where Compilefarm is installed (entry point
`torch.backends`; torch/__init__.py, _import_device_backends). An error here would keep torch from being imported.
"""

from __future__ import annotations

import os

# As the entry point in pyproject.toml says.
BACKEND = "compilefarm.client.backend:compilefarm"


def load() -> None:
    """Has torch's own caches ask a farm if COMPILEFARM_TORCH_CACHES is set, begins with imports in a thread if
    COMPILEFARM_WARM is, and has Dynamo know the backend if COMPILEFARM_DYNAMO is; imports nothing otherwise."""
    if os.environ.get("COMPILEFARM_WARM") == "yes":
        from compilefarm.warming import warm

        warm()
    if os.environ.get("COMPILEFARM_TORCH_CACHES"):
        from compilefarm.client.torch_caches import install_or_announce

        install_or_announce()
    if os.environ.get("COMPILEFARM_DYNAMO", "off") != "off":
        from compilefarm.torch_internals.dynamo_backends import register_once_imported

        register_once_imported("compilefarm", BACKEND)
