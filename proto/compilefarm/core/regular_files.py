"""Files of strangers: a folder that somebody hands over may hold a pipe, into which nobody ever writes, or a link to a
device.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def open_regular(path: Path) -> IO[bytes]:
    """Opens a file for reading, and waits for nothing: what is read is None where the kernel has nothing yet, as with
    some files of `/proc`.

    Raises:
        OSError: there is none, or it is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(descriptor, "rb")
