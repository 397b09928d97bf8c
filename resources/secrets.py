"""Which settings are secrets: what must not be written down, shown, or put on a command line.
Nothing is encrypted or fetched here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

# Spark's own default (spark.redaction.regex), and what PyIceberg's properties add to it.
NAME = re.compile(r"(?i)secret|password|token|credential|access[.-]?key|private[.-]?key|authorization|signed-url")


def is_secret(name: str, value: str) -> bool:
    """Whether a setting is secret by its name, or its value is a URL with a password in it."""
    return bool(NAME.search(name)) or ("://" in value and bool(urlsplit(value).password))


def public(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that are no secrets."""
    return {name: value for name, value in settings.items() if not is_secret(name, value)}
