"""The keys a catalog vends with a table: renewed, named when they have expired, and whether others help.
The catalog is a server that answers as REST catalogs do; that Java keeps them fresh is in test_catalogs.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from lakehouse_assets.environment.catalog import table_io
from lakehouse_assets.worker import session
from lakehouse_assets.worker.failure import CredentialsExpired, out_of_reach
from lakehouse_assets.worker.session import TableCredentials
from tests.support.http_server import Handler, http_server

ENDPOINT = "client.refresh-credentials-endpoint"
EXPIRED = "…services.s3.model.S3Exception: The provided token has expired. (Service: S3, Status Code: 400)"
REFUSED = "When reading information for key 'a' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation"


@dataclass
class Catalog:
    """keys: seconds that the keys of each answer live, in order, the last for ever; None for no word of it. config:
    what it tells beside them. properties: the table's own. gone: whether it still has the table."""

    uri: str = ""
    keys: list[float | None] = field(default_factory=lambda: [None])
    config: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    gone: bool = False

    def lake(self) -> dict[str, str]:
        return {"type": "rest", "uri": f"{self.uri}/api/catalog", "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}

    def answer(self) -> dict[str, Any]:
        seconds = self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]
        config = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c"}
        if seconds is not None:
            config["s3.session-token-expires-at-ms"] = str(int((time.time() + seconds) * 1000))
        metadata = new_table_metadata(
            Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://lake/t", self.properties
        )
        return {
            "metadata-location": "s3://lake/t/metadata/0.json",
            "metadata": json.loads(metadata.model_dump_json()),
            "config": {**self.config, **config},
        }


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    state = Catalog()

    class Rest(Handler):
        def do_GET(self) -> None:
            if state.gone:
                self.answer(404, b"{}", {"Content-Type": "application/json"})
                return
            content = {"defaults": {}, "overrides": {}} if "/config" in self.path else state.answer()
            self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    with http_server(Rest) as state.uri:
        yield state


def raised_for(credentials: TableCredentials, words: str) -> Exception:
    with pytest.raises((CredentialsExpired, OSError)) as raised, credentials.expiry_explained():
        raise OSError(words)
    return raised.value


@pytest.mark.parametrize(("lifetime", "words"), [(None, EXPIRED), (3600, EXPIRED), (0, REFUSED)])
def test_expired_keys_are_named(catalog: Catalog, lifetime: float | None, words: str) -> None:
    catalog.keys = [lifetime, 0]
    error = raised_for(TableCredentials(catalog.lake(), "nyc.flights"), words)
    assert isinstance(error, CredentialsExpired)
    assert all(part in str(error) for part in ("vended with nyc.flights", "expired", "partitions_per_worker"))
    assert not out_of_reach(error), "new ones would live no longer"


@pytest.mark.parametrize(("lifetime", "words"), [(3600, REFUSED), (None, REFUSED), (0, "a bug")])
def test_another_error_stays_what_it_is(catalog: Catalog, lifetime: float | None, words: str) -> None:
    catalog.keys = [lifetime]
    assert isinstance(raised_for(TableCredentials(catalog.lake(), "nyc.flights"), words), OSError)


def test_keys_of_ones_own_are_not_the_catalogs(catalog: Catalog) -> None:
    own = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c"}
    assert isinstance(raised_for(TableCredentials(catalog.lake() | own, "nyc.flights"), EXPIRED), OSError)


def test_keys_that_would_live_longer_are_worth_another_attempt(catalog: Catalog) -> None:
    catalog.keys = [0, 3600]
    assert out_of_reach(raised_for(TableCredentials(catalog.lake(), "nyc.flights"), EXPIRED))


def test_a_catalog_that_is_gone_changes_nothing_about_the_keys(catalog: Catalog) -> None:
    credentials = TableCredentials(catalog.lake(), "nyc.flights")
    catalog.gone = True
    error = raised_for(credentials, EXPIRED)
    assert isinstance(error, CredentialsExpired)
    assert not error.transient


def test_keys_are_renewed(catalog: Catalog) -> None:
    catalog.keys = [1, 3600]
    credentials = TableCredentials(catalog.lake(), "nyc.flights")
    name = "s3.session-token-expires-at-ms"
    assert int(credentials.renewed()[name]) > int(credentials.properties[name])


@pytest.mark.parametrize("slash", ["", "/"])
def test_where_keys_are_renewed_is_relative_to_the_catalog(catalog: Catalog, slash: str) -> None:
    catalog.config = {ENDPOINT: f"{slash}v1/lake/namespaces/n/tables/t/credentials"}
    found = table_io(catalog.lake(), "nyc.flights")
    assert found[ENDPOINT] == f"{catalog.uri}/api/catalog/v1/lake/namespaces/n/tables/t/credentials"


def test_a_catalog_out_of_reach_leaves_the_keys_there_were(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse_assets.environment.catalog.RETRY_SECONDS", 0.05)
    properties = catalog.lake()
    credentials = TableCredentials(properties, "nyc.flights")
    properties["uri"] = "http://127.0.0.1:9/api/catalog"
    assert credentials.renewed() == credentials.properties


def test_a_refusal_is_not_the_keys_fault_where_java_has_had_others(catalog: Catalog) -> None:
    catalog.keys, catalog.config = [0], {ENDPOINT: "v1/lake/namespaces/n/tables/t/credentials"}
    assert isinstance(raised_for(TableCredentials(catalog.lake(), "nyc.flights"), REFUSED), OSError)


def test_where_keys_are_renewed_may_be_elsewhere(catalog: Catalog) -> None:
    catalog.config = {ENDPOINT: "https://keys.example.com/t"}
    assert table_io(catalog.lake(), "nyc.flights")[ENDPOINT] == "https://keys.example.com/t"


def test_a_tables_own_property_sends_no_credential_anywhere(catalog: Catalog) -> None:
    catalog.properties = {ENDPOINT: "https://mallory.example.com"}
    assert ENDPOINT not in table_io(catalog.lake(), "nyc.flights")


def test_keys_are_waited_for_while_the_catalog_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = mock.Mock(side_effect=[ServiceUnavailableError("503"), {"s3.access-key-id": "a"}])
    monkeypatch.setattr(session, "table_io", answers)
    assert TableCredentials({}, "demo.numbers").properties == {"s3.access-key-id": "a"}
    assert answers.call_count == 2
