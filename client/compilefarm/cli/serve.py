"""`compilefarm serve`: gateway, local workers and embedded store in one process."""

from __future__ import annotations

import argparse
import asyncio
import sys

from compilefarm.core.errors import FarmError
from compilefarm.serving.config import add_arguments as add_arguments
from compilefarm.serving.config import read_config
from compilefarm.serving.farm import serve
from compilefarm.serving.flags import UnusableFile
from compilefarm.serving.process import set_up_log


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT."""
    try:
        config = read_config(arguments)
        set_up_log(config.log_format)
        asyncio.run(serve(config))
    except UnusableFile as error:
        print(f"compilefarm serve: {error}", file=sys.stderr)
        return 2
    except (FarmError, RuntimeError) as error:
        print(f"compilefarm serve: {error}", file=sys.stderr)
        return 1
    return 0
