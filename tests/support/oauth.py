"""An authorising proxy in front of a REST catalog that wants sigv4: OAuth2 by client credentials, as Polaris has it.
It issues short-lived tokens, refuses requests without one, signs what it forwards, and vends S3's keys with a table."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.http_server import Handler, http_server
from tests.support.servers import ACCESS_KEY, REGION, SECRET_KEY

SCOPE = "PRINCIPAL_ROLE:ALL"
REALM = "lakehouse"
# Clocks are allowed to differ: a token is good for this much longer than it says.
LEEWAY_SECONDS = 2.0


@dataclass
class OAuth:
    """uri: where clients connect. seconds: what a token says of its life. vended: FileIO properties that a table comes
    with, for who asks for vended credentials. refreshes: whether it tells with a table where its keys are given anew;
    refreshed: how often they were. issued, refused: how many tokens, how many requests without a good one. agents: who
    was let in."""

    client_id: str
    client_secret: str
    seconds: int
    vended: Mapping[str, str]
    refreshes: bool = False
    refreshed: int = 0
    uri: str = ""
    issued: int = 0
    refused: int = 0
    agents: set[str] = field(default_factory=set)
    good_until: dict[str, float] = field(default_factory=dict)

    def properties(self) -> dict[str, str]:
        """PyIceberg's properties of the catalog, which it reaches through the proxy, without its warehouse."""
        return {
            "type": "rest",
            "uri": self.uri,
            "credential": f"{self.client_id}:{self.client_secret}",
            "scope": SCOPE,
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
            "header.polaris-realm": REALM,
        }


@contextmanager
def oauth(
    target: str,
    *,
    client_id: str = "lakehouse",
    client_secret: str = "lakehouse-client-secret",
    seconds: int = 3600,
    vended: Mapping[str, str] | None = None,
    refreshes: bool = False,
) -> Iterator[OAuth]:
    """A proxy on a free loopback port in front of ``target``, the URI of SeaweedFS's catalog."""
    state = OAuth(client_id, client_secret, seconds, vended or {}, refreshes)

    class Proxy(_Authorise):
        upstream = target
        oauth = state

    with http_server(Proxy) as state.uri:
        yield state


class _Authorise(Handler):
    upstream: str
    oauth: OAuth

    def _handle(self) -> None:
        body = self.body()
        if urlsplit(self.path).path == "/v1/oauth/tokens":
            self._issue(dict(parse_qsl(body.decode())))
        elif self.headers.get("Polaris-Realm") != REALM:
            self._answer(404, _error(404, "NotFoundException", "no such realm"))
        elif not self._authorised():
            self.oauth.refused += 1
            self._answer(401, _error(401, "NotAuthorizedException", "the token is unknown or has expired"))
        else:
            self.oauth.agents.add(self.headers.get("User-Agent", "").partition("/")[0])
            if self.path.endswith("/credentials"):
                self._refresh()
                return
            status, answer = self._forward(body)
            self._answer(status, self._vend(answer) if status == 200 else answer)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _handle

    def _issue(self, form: Mapping[str, str]) -> None:
        """RFC 6749, 4.4 and 5; https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml"""
        if self.command != "POST" or form.get("grant_type") != "client_credentials":
            self._answer(400, {"error": "unsupported_grant_type", "error_description": "client_credentials only"})
        elif (form.get("client_id"), form.get("client_secret")) != (self.oauth.client_id, self.oauth.client_secret):
            self._answer(401, {"error": "invalid_client", "error_description": "client id or secret is wrong"})
        elif form.get("scope") != SCOPE:
            self._answer(400, {"error": "invalid_scope", "error_description": f"the scope must be {SCOPE}"})
        else:
            token = f"token-{uuid4().hex}"
            self.oauth.good_until[token] = time.monotonic() + self.oauth.seconds + LEEWAY_SECONDS
            self.oauth.issued += 1
            token_answer = {"access_token": token, "token_type": "bearer", "expires_in": self.oauth.seconds}
            self._answer(200, token_answer | {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})

    def _authorised(self) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.oauth.good_until.get(token, 0) > time.monotonic()

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        url = self.upstream + self.path
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        headers["x-amz-content-sha256"] = sha256(body).hexdigest()
        request = AWSRequest(method=self.command, url=url, data=body, headers=headers)
        SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3tables", REGION).add_auth(request)
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        connection.request(self.command, self.path, body=body, headers=dict(request.headers.items()))
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer

    def _vend(self, answer: bytes) -> bytes:
        """A table comes with keys for its files, if the client asks for them, as Polaris gives them: in both places."""
        asked = "vended-credentials" in self.headers.get("X-Iceberg-Access-Delegation", "")
        loaded = self.command == "GET" or self.path.endswith("/tables")
        if not (asked and loaded and self.oauth.vended and b'"metadata-location"' in answer):
            return answer
        table = json.loads(answer)
        endpoint = f"{urlsplit(self.path).path.lstrip('/')}/credentials"  # relative to the catalog, as Polaris has it
        where = {"client.refresh-credentials-endpoint": endpoint} if self.oauth.refreshes else {}
        table["config"] = (table.get("config") or {}) | self.oauth.vended | where
        table["storage-credentials"] = self._keys()
        return json.dumps(table).encode()

    def _refresh(self) -> None:
        """LoadCredentialsResponse of the same specification."""
        self.oauth.refreshed += 1
        self._answer(200, {"storage-credentials": self._keys()})

    def _keys(self) -> list[dict[str, Any]]:
        return [{"prefix": "s3://", "config": dict(self.oauth.vended)}]

    def _answer(self, status: int, body: bytes | Mapping[str, Any]) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answer(status, content, {"Content-Type": "application/json"})


def _error(code: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}
