"""Reads environment variables, and recognises secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

# Spark's default (spark.redaction.regex), and other secrets of PyIceberg's properties, HTTP headers and Hadoop's
# settings. The pattern means the same in Java and Python.
WORDS = (
    "secret|passw|passphrase|cookie|(?<!security[.])authorization|signed-url|connection-string"
    "|token|user[._-]?info|(?<!renewal[.])credential|encryption[.]key(?=$|=)|(?:access|account|api|private|shared|sse)[._-]?key"
)
# Endings of names that have such a word but are no secrets: switches, classes, places, times.
ENDINGS = (
    "enabled|type|mechanism|providers?(?:[.](?:type|path|mapping))?|binding|file|bitlength|ratio|wait"
    "|expires-(?:at|in-ms)"
)
WORD = rf"(?:{WORDS})(?![\w.-]*(?:{ENDINGS})(?:$|=))"
# Java reads it too, as Spark's setting, so the flag is in the pattern.
SENSITIVE = f"(?i){WORD}"
NAME = re.compile(SENSITIVE)
# A secret's name with its value, inside another value: a URL's query, Java's -D options, libpq's connection strings.
INSIDE = re.compile(rf"(?:{WORD})[^=\s&;?/]*=[^\s&;]", re.IGNORECASE)
# As in SQLAlchemy's URLs, a password, between the user's colon and the @, may have any character.
USER_INFO = re.compile(r"://[^:/@]*:(.+)@", re.DOTALL)
# The same in a text, with what precedes it.
URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^\s\"'<>]+@")
# A secret's name, and the value that is assigned to it.
ASSIGNED = re.compile(rf"((?:{WORD})[^=\s&;?/]*=)[\"']?([^\s&;\"']+)", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether a name is a secret's, or a value has a password: in a URL, or ``password=…``."""
    return bool(NAME.search(name) or INSIDE.search(value) or USER_INFO.search(value))


def redacted(value: str) -> str:
    """Returns the value; an ellipsis if it has a password."""
    return "…" if is_secret("", value) else value


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that are not secret."""
    return {name: value for name, value in settings.items() if not is_secret(name, value)}


N = TypeVar("N", int, float)
# What follows the scheme of a URL that names a bucket.
BUCKET = r"://[^/\s]+(/.*)?"
DURATION = re.compile(r"PT(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?")
ROLE = r"arn:aws[\w-]*:iam::\d{12}:role/.+"
ROLE_EXAMPLE = "arn:aws:iam::123456789012:role/x"


class SettingsError(ValueError):
    """The settings can't work; the message lists every problem."""


class EnvReader:
    """Reads variables of ``env``; collects ``problems``, so that a person sees all at once, and all names ``asked``.

    needed_by: what needs the next variables, for messages; callers set it.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.needed_by = ""
        self.problems: list[str] = []
        self.asked: set[str] = set()

    def text(self, name: str, pattern: str = r".+", example: str = "", default: str | None = None) -> str:
        """Reads a value. Notes a problem if it is missing and there is no default, or if it doesn't match."""
        value = self._value(name)
        if not value:
            missing = f"{name} is not set"
            if default is None and not any(problem.startswith(missing) for problem in self.problems):
                such = f", such as {example}" if example else ""
                self.problems.append(f"{missing} ({self.needed_by} needs it{such})")
            return default or ""
        if not re.fullmatch(pattern, value):
            self.problems.append(f"{name}={redacted(value)!r} is not of the form {example or pattern}")
        return value

    def items(self, name: str, pattern: str, example: str, *, required: bool = True) -> tuple[str, ...]:
        """Reads a comma-separated list; empty only if not required and not set."""
        if not required and not self._value(name):
            return ()
        text = self.text(name, example=example)
        values = tuple(part.strip() for part in text.split(",") if part.strip())
        if text and not values:
            self.problems.append(f"{name}={text!r} is an empty list; an example is {example}")
        if wrong := [value for value in values if not re.fullmatch(pattern, value)]:
            quoted = "…" if is_secret("", text) else ", ".join(wrong)
            self.problems.append(f"{name}: {quoted} is not of the form {example}")
        return values

    def number(self, name: str, kind: Callable[[str], N], most: N | None = None) -> N | None:
        """Reads a number above 0; None if it isn't set or is a problem."""
        value = self._value(name)
        if not value:
            return None
        with suppress(ValueError):
            if 0 < (number := kind(value)) < math.inf and (most is None or number <= most):
                return number
        limits = "above 0" if most is None else f"from 1 to {most}"
        self.problems.append(f"{name}={redacted(value)!r} is not a {'whole ' if kind is int else ''}number {limits}")
        return None

    def duration(self, name: str) -> timedelta | None:
        """Reads an ISO 8601 duration in hours, minutes and seconds, such as PT5M; None as number()."""
        if not (value := self._value(name)):
            return None
        found = DURATION.fullmatch(value)
        if found is None or not any(found.groups()):
            self.problems.append(f"{name}={redacted(value)!r} is not a duration such as PT5M or PT90S")
            return None
        return timedelta(**{unit: int(number) for unit, number in found.groupdict(default="0").items()})

    def _value(self, name: str) -> str:
        self.asked.add(name)
        return self._env.get(name, "").strip()
