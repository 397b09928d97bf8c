"""Makes standard output and error streams that never raise, and that show no secrets.

What nobody can read must not end what is being done. How progress and tables look is cli/terminal.py's.
"""

from __future__ import annotations

import codecs
import io
import locale
import os
import sys
from contextlib import suppress
from typing import TextIO

from lakehouse_assets.environment.redaction import redacted

PLAIN = {"─": "-", "…": "...", "→": "->"}
"""What stands for characters that the locale's encoding lacks; others become question marks."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("plain", _plain)


class _Descriptor(io.RawIOBase):
    """Writes to a file descriptor, and drops what can't be written."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, content: object) -> int:
        data = memoryview(content)  # type: ignore[arg-type]
        written = 0
        try:
            while written < len(data):
                written += os.write(self._number, data[written:])
        except OSError as error:
            self.error = self.error or error
        return len(data)


class Unfailing(io.TextIOWrapper):
    """A text stream to a file descriptor that hides secrets, and drops what can't be written.

    Closing it leaves the descriptor open.
    """

    def __init__(self, number: int) -> None:
        self._descriptor = _Descriptor(number)
        encoding = getattr(sys.__stdout__, "encoding", None) or locale.getencoding()
        super().__init__(io.BufferedWriter(self._descriptor), encoding, "plain", line_buffering=True)

    def write(self, text: str, /) -> int:
        """Writes the text without secrets. Returns the number of characters that were given."""
        super().write(redacted(text))
        return len(text)

    @property
    def error(self) -> OSError | None:
        """The first error of a write; None again once it is set to that."""
        return self._descriptor.error

    @error.setter
    def error(self, error: OSError | None) -> None:
        self._descriptor.error = error


def use_unfailing_streams() -> None:
    """Replaces this process's standard streams. One that is closed leads to nowhere from now on.

    Else the next file to be opened, such as a database, would get its number, and what is printed.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # not where a test or a caller has its own
            if stream:
                with suppress(OSError):
                    stream.flush()
            setattr(sys, name, Unfailing(number))


def lost_output() -> str | None:
    """Says that standard output could not be written, and why; None if it was, or if its reader has gone."""
    sys.stdout.flush()
    error = sys.stdout.error if isinstance(sys.stdout, Unfailing) else None
    if error is None or isinstance(error, BrokenPipeError):  # as `head` does
        return None
    return f"standard output can't be written: {error.strerror}"
