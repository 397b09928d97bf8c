"""What leaves a process: secrets are removed from it, and printing never fails a run."""

from __future__ import annotations

import codecs
import io
import locale
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TextIO
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from lakehouse_assets.environment.env_reader import ASSIGNED, NAME, URL_PASSWORD, USER_INFO

HIDDEN = "…"
SHORTEST = 4
"""Shorter values are hidden in URLs only: they are words, or parts of words, in too many texts."""
ALWAYS = 16
"""Values of letters and digits that are as long are hidden within words as well."""
NO_SECRETS = ("true", "false", "none", "null")
KNOWN: dict[str, str] = {}
"""Settings that are not in the environment, such as those of .pyiceberg.yaml: remember() adds them."""


def remember(settings: Mapping[str, str]) -> None:
    """Has the secrets among these settings hidden from now on, in addition to those of the environment's variables."""
    KNOWN.update({name: str(value) for name, value in settings.items() if any(_secrets(name, str(value)))})


def redacted(text: str) -> str:
    """Returns the text without the values of this process's secrets, percent-encoded or not, and without their parts.

    Passwords in URLs are hidden whether they are known or not.
    """
    if pattern := _pattern(frozenset({*os.environ.items(), *KNOWN.items()})):
        text = pattern.sub(HIDDEN, text)
    return URL_PASSWORD.sub(rf"\g<1>{HIDDEN}@", text)


def redact(error: BaseException) -> None:
    """Takes secrets out of the messages of an error, its causes and contexts, in place."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        with suppress(Exception):  # an error whose arguments can't be set
            one.args = tuple(redacted(part) if isinstance(part, str) else part for part in one.args)
            if isinstance(description := getattr(one, "description", None), str):  # dagster.Failure's
                one.description = redacted(description)  # type: ignore[attr-defined]
        left += [other for other in (one.__cause__, one.__context__) if other]


@lru_cache(maxsize=4)
def _pattern(settings: frozenset[tuple[str, str]]) -> re.Pattern[str] | None:
    found = {form for name, value in settings for secret in _secrets(name, value) for form in _forms(secret)}
    parts = [_alone(one) for one in sorted(found, key=len, reverse=True) if one.lower() not in NO_SECRETS]
    return re.compile("|".join(parts)) if parts else None


def _secrets(name: str, value: str) -> Iterator[str]:
    """Yields the secrets in a setting: its value, passwords in it, and the parts that a message may quote alone."""
    if NAME.search(name):
        # Before a colon there is a name, such as OAuth2's client id or the user of basic authentication.
        yield from (value, *value.splitlines(), value.partition(":")[2])
    yield from (found[2] for found in ASSIGNED.finditer(value))
    if found := USER_INFO.search(value):
        yield (password := found[1])
        # Clients end a password at another character than we do where it is not percent-encoded.
        yield from re.split(r"[@:/?#]", password)
        yield from (f"{password[at.end() :]}@" for at in re.finditer("@", password))


def _forms(secret: str) -> Iterator[str]:
    """Yields how the secret may be written in a text."""
    for form in {secret, unquote(secret), unquote_plus(secret)}:
        written = {form, quote(form), quote(form, ""), quote_plus(form), repr(form)[1:-1]}
        yield from (one for one in written if len(one) >= SHORTEST)


def _alone(secret: str) -> str:
    """Returns a pattern for the secret, which leaves longer words alone where it may be a word itself."""
    if len(secret) >= ALWAYS or not secret.isalnum():
        return re.escape(secret)
    return rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"


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
