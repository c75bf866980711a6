"""A gateway of another release: `other_release.py FORMATS FOLDER`. Prints its address; to be killed.

FORMATS says which formats of keys that release has, as JSON: names of parts by number. All else is this release's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from unittest.mock import patch

from compilefarm.core import keys
from compilefarm.service.testing import serving
from compilefarm.store.opening import open_store


async def main() -> None:
    formats = {int(number): tuple(names) for number, names in json.loads(sys.argv[1]).items()}
    patch.dict(keys.FORMATS, formats, clear=True).start()
    folder = Path(sys.argv[2])
    store = await open_store(str(folder / "store"))
    async with serving(store=store, former_journal=folder / "state") as gateway:
        print(gateway.address, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
