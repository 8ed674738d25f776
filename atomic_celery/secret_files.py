"""Reading files that hold a secret. What is no such file is refused before it can keep anybody waiting."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

_MOST_BYTES = 64 * 1024


class Content(NamedTuple):
    """What is in a file, and how it is protected."""

    text: str
    mode: int

    @property
    def is_exposed(self) -> bool:
        """Whether other users than its owner can read it."""
        return bool(self.mode & (stat.S_IRGRP | stat.S_IROTH))


def read(path: str | os.PathLike[str]) -> Content:
    """Read a file that holds a secret; `~` in *path* is the user's home.

    Raises:
        OSError: It cannot be read, or holds no secret; `strerror` says why, in words that follow a colon.
    """
    named = os.fspath(path)
    if "\0" in named:
        raise OSError(errno.EINVAL, "its name holds NUL")
    # A FIFO that nobody writes to would keep us waiting.
    descriptor = os.open(os.path.expanduser(named), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file, and would not be there to be read again")
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is longer than {_MOST_BYTES >> 10} KiB")
    try:
        return Content(raw.decode(), stat.S_IMODE(mode))
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text") from None
