"""The schema registry is asked where the environment says, as whom it says, and what it can't answer is told."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lakehouse_assets.declare.row_source import client_environment
from lakehouse_assets.errors import SourceUnreachable
from lakehouse_assets.extensions.sources.values import ask
from tests.support.http_server import Handler, http_server
from tests.support.schema_registry import Served, small_registry

FOUND = {"schema": '"long"'}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with small_registry() as served:
        served.answers["/schemas/ids/1"] = FOUND
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", served.url)
        yield served


def redirecting(to: str) -> type[Handler]:
    class Redirecting(Handler):
        def do_GET(self) -> None:
            self.answer(302, b"", {"Location": to + self.path})

    return Redirecting


def answering(status: int, content: bytes) -> type[Handler]:
    class Answering(Handler):
        def do_GET(self) -> None:
            self.answer(status, content, {})

    return Answering


def test_it_is_asked_as_the_user_of_the_environment(registry: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("/schemas/ids/1") == FOUND
    monkeypatch.setenv("SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", "me:a:secret")
    assert ask("/schemas/ids/1") == FOUND
    assert registry.authorizations == [None, "Basic bWU6YTpzZWNyZXQ="]


def test_another_server_that_it_redirects_to_is_not_told_who_asks(
    registry: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", "me:secret")
    with http_server(redirecting(registry.url)) as url:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", url)
        assert ask("/schemas/ids/1") == FOUND
    assert registry.authorizations == [None]


def test_the_next_of_several_is_asked_where_one_is_down(registry: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"http://127.0.0.1:1, {registry.url}/")
    assert ask("/schemas/ids/1") == FOUND


def test_what_it_does_not_have_is_none(registry: Served) -> None:
    assert ask("/schemas/ids/2") is None


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (401, b"{}", "HTTP Error 401"),
        (500, b'{"error_code": 50001}', "HTTP Error 500"),
        (404, b"<html>", "HTTP Error 404"),
        (404, b'{"status": 404}', "HTTP Error 404"),
        (200, b"<html>", "Expecting value"),
    ],
)
def test_other_answers_say_that_it_cannot_be_reached(
    status: int, content: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_server(answering(status, content)) as url:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", url)
        with pytest.raises(SourceUnreachable, match=f"registry can't be reached at {url}: {reason}"):
            ask("/schemas/ids/1")


def test_without_a_url_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)
    with pytest.raises(SourceUnreachable, match="SCHEMA_REGISTRY_URL is not set"):
        ask("/schemas/ids/1")


def test_a_url_with_a_password_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://me:secret@127.0.0.1:1")
    with pytest.raises(SourceUnreachable, match="set SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO") as refused:
        ask("/schemas/ids/1")
    assert "secret" not in str(refused.value)


def test_workers_get_its_settings(registry: Served) -> None:
    assert client_environment()["SCHEMA_REGISTRY_URL"] == registry.url


def test_certificates_of_the_environment_are_shown_and_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key, "secret")
    tls.load_verify_locations(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    server = HTTPServer(("127.0.0.1", 0), answering(200, b'{"schema": ""}'))
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it is no news
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", f"https://127.0.0.1:{server.server_port}")
    try:
        with pytest.raises(SourceUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            ask("/schemas/ids/1")
        monkeypatch.setenv("SCHEMA_REGISTRY_SSL_CA_LOCATION", str(certificate))
        with pytest.raises(SourceUnreachable, match="can't be reached"):
            ask("/schemas/ids/1")
        monkeypatch.setenv("SCHEMA_REGISTRY_SSL_CERTIFICATE_LOCATION", str(certificate))
        monkeypatch.setenv("SCHEMA_REGISTRY_SSL_KEY_LOCATION", str(key))
        with pytest.raises(SourceUnreachable, match="can't be reached"):
            ask("/schemas/ids/1")
        monkeypatch.setenv("SCHEMA_REGISTRY_SSL_KEY_PASSWORD", "secret")
        assert ask("/schemas/ids/1") == {"schema": ""}
    finally:
        server.shutdown()
        server.server_close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, and its key, whose password is ``secret``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, of_key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encryption = serialization.BestAvailableEncryption(b"secret")
    of_key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return certificate, of_key
