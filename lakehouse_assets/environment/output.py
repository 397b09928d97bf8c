"""Removes secrets from output, and keeps printing from failing a run."""

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
"""The least length of a secret that is hidden, except in URLs: too many texts contain shorter ones."""
ALWAYS = 16
"""Alphanumeric secrets of this length are hidden within longer words too; shorter ones may be common words."""
# Values of settings with a secret's name that are no secrets.
NO_SECRETS = ("true", "false", "none", "null")
KNOWN: dict[str, str] = {}
"""Settings outside the environment, from remember()."""


def remember(settings: Mapping[str, str]) -> None:
    """Hides the secrets of these settings from now on."""
    KNOWN.update({name: str(value) for name, value in settings.items() if any(_secrets(name, str(value)))})


def redacted(text: str) -> str:
    """Returns the text without this process's secrets, their parts and encodings, and URLs' passwords."""
    if pattern := _pattern(frozenset({*os.environ.items(), *KNOWN.items()})):
        text = pattern.sub(HIDDEN, text)
    return URL_PASSWORD.sub(rf"\g<1>{HIDDEN}@", text)


def redact(error: BaseException) -> None:
    """Removes secrets from an error's, its causes' and contexts' messages, in place."""
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
    # The longest first: the pattern takes the first that matches, and a secret may begin with another.
    parts = [_alone(one) for one in sorted(found, key=len, reverse=True) if one.lower() not in NO_SECRETS]
    return re.compile("|".join(parts)) if parts else None


def _secrets(name: str, value: str) -> Iterator[str]:
    """Includes parts of secrets that a message may quote alone."""
    if NAME.search(name):
        # A name may precede a colon: OAuth2's client id, or basic authentication's user.
        yield from (value, *value.splitlines(), value.partition(":")[2])
    yield from (found[2] for found in ASSIGNED.finditer(value))
    if found := USER_INFO.search(value):
        yield (password := found[1])
        # If a password is not percent-encoded, clients may take one of these characters for its end.
        yield from re.split(r"[@:/?#]", password)
        # A client that ends the password at an earlier @ takes its rest for the beginning of the host, and quotes that.
        yield from (f"{password[at.end() :]}@" for at in re.finditer("@", password))


def _forms(secret: str) -> Iterator[str]:
    # As settings and messages may write it: percent-encoded or not, or as Python's repr().
    for form in {secret, unquote(secret), unquote_plus(secret)}:
        written = {form, quote(form), quote(form, ""), quote_plus(form), repr(form)[1:-1]}
        yield from (one for one in written if len(one) >= SHORTEST)


def _alone(secret: str) -> str:
    """Returns a pattern: a secret that may be a common word matches only as a whole word."""
    if len(secret) >= ALWAYS or not secret.isalnum():
        return re.escape(secret)
    return rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"


PLAIN = {"─": "-", "…": "...", "→": "->"}
"""For characters that the encoding lacks; others become a question mark."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Returns the replacement for what can't be encoded, and where to go on: an error handler's result."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("plain", _plain)


class _Descriptor(io.RawIOBase):
    """A raw stream whose writes never fail: it keeps the first error, and drops what can't be written."""

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
    """A text stream that hides secrets, drops what can't be written, and leaves its descriptor open."""

    def __init__(self, number: int) -> None:
        self._descriptor = _Descriptor(number)
        encoding = getattr(sys.__stdout__, "encoding", None) or locale.getencoding()
        super().__init__(io.BufferedWriter(self._descriptor), encoding, "plain", line_buffering=True)

    def write(self, text: str, /) -> int:
        """Writes the text without secrets; returns its original length."""
        super().write(redacted(text))
        return len(text)

    @property
    def error(self) -> OSError | None:
        """The first error of a write since this was last set to None."""
        return self._descriptor.error

    @error.setter
    def error(self, error: OSError | None) -> None:
        self._descriptor.error = error


def use_unfailing_streams() -> None:
    """Replaces this process's standard streams; opens closed descriptors on /dev/null.

    Otherwise the next file that is opened, such as a database, would get descriptor 1 or 2, and receive the output.
    """
    # open() takes the lowest free descriptor: above 2, all standard ones are open.
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # a test or a caller may have its own
            if stream:
                with suppress(OSError):
                    stream.flush()
            setattr(sys, name, Unfailing(number))


def lost_output() -> str | None:
    """Says why standard output could not be written; None if it could, or if its reader has gone, as `head` does."""
    sys.stdout.flush()
    error = sys.stdout.error if isinstance(sys.stdout, Unfailing) else None
    if error is None or isinstance(error, BrokenPipeError):
        return None
    return f"standard output can't be written: {error.strerror}"
