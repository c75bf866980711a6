"""Sizes as people write them."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(k|M|G|T|Ki|Mi|Gi|Ti|)B", re.ASCII)
_FACTORS = {
    "": 1,
    **{name: 1000**power for power, name in enumerate(("k", "M", "G", "T"), start=1)},
    **{name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}


def size(text: str) -> int:
    """Reads a size in bytes: "50GB", "1.5 TB", "512MiB".

    Raises:
        argparse.ArgumentTypeError: it is written otherwise.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write it like 500MB, 50GB, 1.5TB or 64GiB")
    return int(Decimal(match[1]) * _FACTORS[match[2]])
