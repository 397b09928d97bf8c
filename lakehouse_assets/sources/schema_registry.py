"""A schema registry with the REST interface of Confluent's, which others have as well, asked for what it has.

What the schemas mean is avro_value.py's. Reached by SCHEMA_REGISTRY_URL and the other settings of Confluent's client,
named likewise.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from lakehouse_assets.errors import SourceUnreachable
from lakehouse_assets.sources.row_source import named_settings

PREFIX = "SCHEMA_REGISTRY_"
SECONDS = 15.0
"""How long an answer of the registry is waited for."""
NOT_FOUND = (40401, 40402, 40403)
"""The registry's own codes for a subject, a version and a schema that it does not have. A 404 without one of them comes
from something else, such as a URL that lacks the registry's path."""


def registry_urls() -> str | None:
    """Returns where the registry is, which may be several places with commas between; None where that is not said."""
    return os.environ.get(f"{PREFIX}URL")


def ask(path: str) -> dict[str, Any] | None:
    """Returns the registry's answer for a path; None if it has no such schema. Raises SourceUnreachable.

    The first of its URLs that answers counts.
    """
    settings = named_settings(PREFIX)
    if not (urls := settings.get("url")):
        raise SourceUnreachable(f"{PREFIX}URL is not set: no schema can be looked up")
    if any("@" in urlsplit(url).netloc for url in urls.split(",")):
        raise SourceUnreachable(
            f"{PREFIX}URL has a user in it, and would be shown: set {PREFIX}BASIC_AUTH_USER_INFO to user:password"
        )
    failures = []
    for url in urls.split(","):
        try:
            return _answer(url.strip().rstrip("/") + path, settings)
        except HTTPError as error:
            if _code(error) in NOT_FOUND:
                return None
            failures.append(str(error))
        except (OSError, HTTPException, ValueError) as error:
            failures.append(str(error))
    raise SourceUnreachable(f"the schema registry can't be reached at {urls}: {'; '.join(failures)}")


def _answer(url: str, settings: Mapping[str, str]) -> dict[str, Any]:
    request = Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})
    if user := settings.get("basic.auth.user.info"):
        # Not a plain header, which would be sent to wherever a redirect leads.
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    tls = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if certificate := settings.get("ssl.certificate.location"):
        # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
        password = settings.get("ssl.key.password", "")
        tls.load_cert_chain(certificate, settings.get("ssl.key.location"), password)
    with urlopen(request, timeout=SECONDS, context=tls) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _code(error: HTTPError) -> int | None:
    """Returns the registry's own code of an error; None if something else answered."""
    try:
        found: int | None = json.load(error).get("error_code")
    except (AttributeError, OSError, ValueError):
        return None
    return found
