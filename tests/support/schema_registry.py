"""Schema registries for tests, and values as their serializers write them: Apicurio's, a real one that has Confluent's
REST interface, and a small server for tests that ask for a schema or two. Topics are topics.py's."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro

from lakehouse_assets.environment.machine import java_home
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.environment.spark_setup import put_in_place, scratch_beside
from tests.support.http_server import Handler, http_server
from tests.support.servers import free_ports

VERSION = "3.0.9"  # the last that runs on Java 17
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
)
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
START_SECONDS = 90


def framed(schema_id: int, schema: Any, record: object) -> bytes:
    """A value as Confluent's serializers write it: a magic byte, the schema's id, the record."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema, {}), record)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


@dataclass(frozen=True)
class Registry:
    """A registry by its URL."""

    url: str

    def register(self, subject: str, schema: Any, *references: Mapping[str, Any]) -> int:
        """Adds a version to a subject; returns the id of its schema."""
        body = json.dumps({"schema": json.dumps(schema), "references": references}).encode()
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body, kind, method="POST")
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: int = json.load(answer)["id"]
            return found


@contextmanager
def apicurio(settings: Settings) -> Iterator[Registry]:
    """Starts Apicurio Registry, which keeps its schemas in memory. Its jars are fetched once."""
    folder = settings.cache / "jars" / f"apicurio-{VERSION}"
    if not folder.is_dir():
        _fetch(folder)
    (port,) = free_ports(1)
    places = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *places]
    command = [java_home() / "bin" / "java", *options, "-jar", folder / f"apicurio-registry-app-{VERSION}-runner.jar"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            deadline = time.monotonic() + START_SECONDS
            while not _answers(f"{url}/subjects"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"Apicurio did not start:\n{log.read().decode()[-3000:]}")
                time.sleep(0.2)
            yield Registry(url)
        finally:
            process.kill()
            process.wait()


@dataclass
class Served:
    """What a small registry answers to which path, and what it was asked."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)

    def add(self, schema_id: int, schema: Any, **more: Any) -> None:
        self.answers[f"/schemas/ids/{schema_id}"] = {"schema": json.dumps(schema), **more}


@contextmanager
def small_registry() -> Iterator[Served]:
    """Serves the schemas that a test adds. It is no registry but an HTTP server: of Confluent's REST interface it has
    the two questions by which schemas are read, and the answer where there is none."""
    served = Served()

    class OfRegistry(Handler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            served.authorizations.append(self.headers.get("Authorization"))
            found = served.answers.get(self.path)
            content = found or {"error_code": 40403, "message": "Schema not found"}
            self.answer(200 if found else 404, json.dumps(content).encode(), {"Content-Type": "application/json"})

    with http_server(OfRegistry) as served.url:
        yield served


def _fetch(folder: Path) -> None:
    with scratch_beside(folder) as scratch:
        with urllib.request.urlopen(ARCHIVE, timeout=60) as answer:
            archive = answer.read()
        assert hashlib.sha256(archive).hexdigest() == SHA256, f"{ARCHIVE} is not what it was"
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(scratch / "all", filter="data")
        put_in_place(scratch / "all", folder)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
