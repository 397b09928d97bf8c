"""Tells which settings are secrets, and must not be stored, shown, or put on a command line.

Nothing is encrypted here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Spark's own default (spark.redaction.regex), and the names of other secrets among PyIceberg's properties, HTTP headers
# and Hadoop's settings. The pattern means the same in Java and in Python.
WORDS = (
    "secret|passw|passphrase|cookie|(?<!security[.])authorization|signed-url|connection-string"
    "|token|user[._-]?info|(?<!renewal[.])credential|encryption[.]key(?=$|=)|(?:access|account|api|private|shared|sse)[._-]?key"
)
# The endings of names that have such a word but are no secrets: switches, classes, places, times.
ENDINGS = (
    "enabled|type|mechanism|providers?(?:[.](?:type|path|mapping))?|binding|file|bitlength|ratio|wait"
    "|expires-(?:at|in-ms)"
)
SENSITIVE = rf"(?i)(?:{WORDS})(?![\w.-]*(?:{ENDINGS})(?:$|=))"
NAME = re.compile(SENSITIVE)
# A secret's name with its value, inside another value: a URL's query, Java's -D options, libpq's connection strings.
INSIDE = re.compile(rf"(?:{SENSITIVE.removeprefix('(?i)')})[^=\s&;?/]*=[^\s&;]", re.IGNORECASE)
# As in SQLAlchemy's URLs, a password, between the user's colon and the @, may have any character.
USER_INFO = re.compile(r"://[^:/@]*:(.+)@", re.DOTALL)
# The same in a text, with what precedes it.
URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^\s\"'<>]+@")
# A secret's name, and the value that is assigned to it.
ASSIGNED = re.compile(rf"((?:{SENSITIVE.removeprefix('(?i)')})[^=\s&;?/]*=)[\"']?([^\s&;\"']+)", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Says whether a name is that of a secret, or a value has a password in it: in a URL, or ``password=…``."""
    return bool(NAME.search(name) or INSIDE.search(value) or USER_INFO.search(value))


def shown(value: str) -> str:
    """Returns the value for a message: an ellipsis where the value has a password in it."""
    return "…" if is_secret("", value) else value


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that are not secret."""
    return {name: value for name, value in settings.items() if not is_secret(name, value)}
