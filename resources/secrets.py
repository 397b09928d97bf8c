"""Which settings are secrets: what must not be written down, shown, or put on a command line.
Nothing is encrypted or fetched here."""

from __future__ import annotations

import re
from collections.abc import Mapping

# What Spark takes for sensitive by itself (spark.redaction.regex), and what else PyIceberg's properties, HTTP headers
# and Hadoop's settings call such a thing. Java reads it as Python does.
WORDS = (
    "secret|passw|passphrase|cookie|(?<!security[.])authorization|signed-url|connection-string"
    "|token|(?<!renewal[.])credential|encryption[.]key(?=$|=)|(?:access|account|api|private|shared|sse)[._-]?key"
)
# How names end that only tell about secrets: switches, classes, places, times. A word of no such end is a secret.
ENDINGS = (
    "enabled|type|mechanism|providers?(?:[.](?:type|path|mapping))?|binding|file|bitlength|ratio|wait"
    "|expires-(?:at|in-ms)"
)
SENSITIVE = rf"(?i)(?:{WORDS})(?![\w.-]*(?:{ENDINGS})(?:$|=))"
NAME = re.compile(SENSITIVE)
# A name with its value inside of another value: a URL's query, Java's -D options, libpq's connection strings.
INSIDE = re.compile(rf"(?:{SENSITIVE.removeprefix('(?i)')})[^=\s&;?/]*=[^\s&;]", re.IGNORECASE)
# As SQLAlchemy reads a URL: what is between the user's colon and the @ may hold any character.
USER_INFO = re.compile(r"://[^:/@]*:[^@]+@")


def is_secret(name: str, value: str) -> bool:
    """Whether a setting is secret by its name, or its value holds a password: in a URL, or as ``password=…``."""
    return bool(NAME.search(name) or INSIDE.search(value) or USER_INFO.search(value))


def shown(value: str) -> str:
    """The value as a message may quote it; in place of one with a password in it, an ellipsis."""
    return "…" if is_secret("", value) else value


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that are no secrets."""
    return {name: value for name, value in settings.items() if not is_secret(name, value)}
