"""What is hidden in texts that leave a process: values of secrets, however they are written, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest

from lakehouse_assets.environment.output import redact, redacted, remember
from tests.conftest import ROOT

PASSWORD = "S3cr'et/p@ss wörd%!x"
VARIABLES = (
    "PYICEBERG_CATALOG__LAKE__TOKEN",
    "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY",
    "PYICEBERG_CATALOG__LAKE__HEADER__X_API_KEY",
    "LAKEHOUSE_SPARK__spark__hadoop__fs__s3a__secret__key",
    "DAGSTER_POSTGRES_PASSWORD",
    "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO",
    "PGPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr("lakehouse_assets.environment.output.KNOWN", {})


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("write", [str, repr, quote, quote_plus, lambda text: quote(text, "")])
def test_the_value_of_a_secret_is_hidden_however_it_is_written(name: str, write) -> None:
    os.environ[name] = PASSWORD
    told = redacted(f"no connection by {write(PASSWORD)} to the host")
    assert told in (
        "no connection by … to the host",
        "no connection by '…' to the host",
        'no connection by "…" to the host',
    )


@pytest.mark.parametrize("encoded", [PASSWORD.replace(" ", ""), quote(PASSWORD, "")])
@pytest.mark.parametrize(
    "told",
    [
        "postgresql://app:{whole}@host/db",
        "{whole}",
        "could not translate host name {after_at}@host",
        "Port could not be cast to integer value as {before_slash!r}",
    ],
)
def test_so_are_a_password_in_a_url_and_its_parts(encoded: str, told: str) -> None:
    os.environ["PYICEBERG_CATALOG__LAKE__URI"] = f"postgresql://app:{encoded}@host/db"
    after = encoded.partition("@")[2] or encoded
    text = redacted(told.format(whole=encoded, after_at=after, before_slash=encoded.partition("/")[0]))
    assert "S3cr" not in text
    assert "rd" not in text.replace("word", "").replace("could", "")


def test_what_is_not_in_the_environment_is_remembered() -> None:
    remember({"credential": "client-id:hush-hush", "uri": "https://lake.example", "warehouse": "s3://lake"})
    told = "client-id:hush-hush hush-hush client-id https://lake.example s3://lake"
    assert redacted(told) == "… … client-id https://lake.example s3://lake"


def test_so_is_a_password_in_an_option() -> None:
    os.environ |= {
        "KAFKA_SASL_JAAS_CONFIG": 'ScramLoginModule required username="me" password="hush-hush";',
        "LAKEHOUSE_SPARK__spark__driver__extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=quiet-please -Da=b",
    }
    assert redacted("hush-hush quiet-please me b") == "… … me b"


def test_words_of_other_texts_stay() -> None:
    os.environ |= {
        "PGPASSWORD": "post",
        "SOME_TOKEN": "true",
        "A_TOKEN": "x",
        "TOKEN_FILE": "/var/token",
        "HOME": "/me",
    }
    text = "postgresql://host/db?a=b true x /var/token /me http://127.0.0.1:3000/runs file:///a b:c@d lakehouse.token=1"
    assert redacted(text) == text
    assert redacted("post it") == "… it"


def test_an_unknown_password_in_a_url_is_hidden() -> None:
    assert redacted("see postgresql://me:unknown@host/db, or so") == "see postgresql://me:…@host/db, or so"


def test_errors_lose_secrets_with_their_causes() -> None:
    os.environ["PGPASSWORD"] = "hush-hush"
    inner, outer = ValueError("by hush-hush", 1), RuntimeError("it was hush-hush")
    outer.__cause__, inner.__context__ = inner, outer
    redact(outer)
    assert (outer.args, inner.args) == (("it was …",), ("by …", 1))


def test_tracebacks_and_output_of_a_process_lose_them() -> None:
    code = (
        "from lakehouse_assets.environment.output import use_unfailing_streams as use; use(); "
        "print('by hush-hush'); raise RuntimeError('postgresql://me:' + 'other@host, hush' + '-hush')"
    )
    env = {"PGPASSWORD": "hush-hush", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "by …\n"
    assert done.stderr.splitlines()[-1] == "RuntimeError: postgresql://me:…@host, …"
