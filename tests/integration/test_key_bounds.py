"""No file that holds one of the changes' keys is skipped, whatever the keys are: by Iceberg's own planning in the JVM,
which a merge reads by, and by PyIceberg's, which decides whether it lands. What a merge does to rows: test_merge.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse_assets.commit.change import Within, predicate
from lakehouse_assets.environment.catalog_in_spark import spark_catalogs
from lakehouse_assets.wire.work import Bound, Merged, MergeWork
from lakehouse_assets.worker import changes
from lakehouse_assets.worker.merge import Fork, is_projected, merge
from lakehouse_assets.worker.session import configure
from tests.support.spark_tables import loaded

pytestmark = pytest.mark.spark
INT, LONG, HOURS = 2**31, 2**63, 2**31 * 3_600_000_000
EDGES: Mapping[str, tuple[str, Sequence[Any]]] = {
    "small": ("int", [-INT, -INT + 1, -INT + 9, -INT + 10, -1, 0, 5, INT - 1]),
    "coarse": ("int", [-INT, -INT // 2 - 1, -5, 0, 5, INT // 2, INT // 2 + 1, INT - 1]),
    "grown": ("int", [-INT, -INT + 1, -INT + 10, -7, 0, 3, 10, INT - 1]),
    "large": ("bigint", [-LONG, -LONG + 1, -LONG + 9, -LONG + 10, -INT, 0, INT, LONG - 1]),
    "price": ("decimal(4, 2)", ["-99.50", "-99.49", "-0.01", "0.00", "0.05", "0.50", "99.50", "99.99"]),
    "exact": ("decimal(38, 3)", [f"-{'9' * 35}.936", "-1", "-0.001", "0", "0.063", "0.064", "1", f"{'9' * 35}.999"]),
    "day": ("date", [-INT, -719_163, -719_162, -1, 0, 2_932_896, 2_932_897, INT - 1]),
    "at": ("timestamp", [-LONG, -HOURS - 1, -HOURS, -1, 0, 253_402_300_799_999_999, HOURS, LONG - 1]),
    "text": ("string", ["", "a", "ab", "abé", "é", "\uffff", "😀😀z", "\U0010ffff" * 20]),
    "paid": ("boolean", [False, False, False, False, True, True, True, True]),
}
"""By column, its type and a value for each row, in Spark's order. Dates are in days, times in microseconds."""
MADE = {"date": "date_from_unix_date({})", "timestamp": "timestamp_micros({})"}
BY = ["small", "truncate(10, small)", "bucket(7, small)", "truncate(1073741825, coarse)", "bucket(7, coarse)"]
BY += ["grown", "truncate(10, grown)", "bucket(7, grown)", "large", "truncate(10, large)", "bucket(7, large)"]
BY += ["truncate(50, price)", "bucket(7, price)", "truncate(64, exact)", "bucket(7, exact)"]
BY += [
    "year(day)",
    "bucket(7, day)",
    "hour(at)",
    "bucket(7, at)",
    "text",
    "truncate(2, text)",
    "bucket(7, text)",
    "paid",
]
"""Partition terms: every transform of every type that has bounds, as far as a table can have them beside each other."""


@dataclass(frozen=True)
class Edges:
    """A table with a file for each row."""

    spark: SparkSession
    name: str
    metadata: TableMetadata
    listed: Sequence[tuple[ManifestFile, Sequence[DataFile]]]
    """Its manifests, each with the files that it lists."""
    spelled: Mapping[str, Sequence[str]]
    """By column, the value of each row as bounds spell it."""
    files: Sequence[str]
    """By row, the path of its file."""

    def planned(self, bound: Sequence[Bound]) -> set[str]:
        """The files that Iceberg would read for a merge with these bounds, which Spark gives it as filters."""
        jvm, session = self.spark._jvm, self.spark._jsparkSession
        where = changes.condition(bound, self.spark.table(self.name).schema, "edges").replace("edges.", "")
        found = jvm.org.apache.spark.sql.execution.datasources.SparkExpressionConverter
        given = found.convertToIcebergExpression(found.collectResolvedSparkExpression(session, self.name, where))
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, self.name)
        tasks = table.newScan().filter(given).planFiles().iterator()
        paths = set()
        while tasks.hasNext():
            paths.add(tasks.next().file().location())
        return paths

    def met(self, bound: Sequence[Bound]) -> set[str]:
        """The files that stand in the way of a merge with these bounds, if others have changed them."""
        within = Within(self.metadata, self.metadata.schema(), predicate(bound, self.metadata.schema()))
        return {
            f.file_path for manifest, files in self.listed if within.may_be_in(manifest) for f in files if within.has(f)
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("keys").as_uri()


@pytest.fixture(scope="module")
def spark(jvm: SparkSession, folder: str) -> SparkSession:
    """A worker's session."""
    session = configure(jvm.newSession(), spark_catalogs({"type": "sql", "uri": "sqlite://", "warehouse": folder}))
    session.sql("CREATE NAMESPACE stage.keys")
    return session


@pytest.fixture(scope="module")
def edges(spark: SparkSession, folder: str) -> Edges:
    name = "stage.keys.edges"
    columns = ", ".join(f"{name} {of}" for name, (of, _) in EDGES.items())
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING iceberg LOCATION '{folder}/edges' "
        "TBLPROPERTIES ('format-version' = '2')"
    )
    for n, term in enumerate(BY):
        spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD {term} AS part_{n}")
    rows = list(zip(*(values for _, values in EDGES.values()), strict=True))
    made = [f"CAST({MADE.get(of, '{}').format(column)} AS {of}) AS {column}" for column, (of, _) in EDGES.items()]
    found = spark.createDataFrame(rows, list(EDGES)).coalesce(1).selectExpr(*made)
    for half in (found.where("NOT paid"), found.where("paid")):
        half.writeTo(name).option("distribution-mode", "none").option("fanout-enabled", "true").append()
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN grown TYPE bigint")
    types = {field.name: field.dataType for field in spark.table(name).schema}
    spelled = [changes._spelled(F.col(column), of).alias(column) for column, of in types.items()]
    read = spark.table(name).orderBy("small").select("_file", *spelled).collect()
    table = loaded(spark, name)
    listed = [
        (manifest, [entry.data_file for entry in manifest.fetch_manifest_entry(table.io)])
        for manifest in table.current_snapshot().manifests(table.io)
    ]
    texts = {column: [row[column] for row in read] for column in EDGES}
    return Edges(spark, name, table.metadata, listed, texts, [row._file for row in read])


@pytest.mark.parametrize("column", EDGES)
def test_no_file_with_a_key_is_skipped(edges: Edges, column: str) -> None:
    rows = range(len(edges.files))

    @settings(max_examples=25, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sets(st.sampled_from(rows), min_size=1), st.booleans())
    def find(keyed: set[int], listed: bool) -> None:
        texts = [edges.spelled[column][n] for n in sorted(keyed)]
        bound = Bound(column, tuple(texts)) if listed else Bound(column, (), texts[0], texts[-1])
        bounds = [bound] if is_projected(bound, edges.metadata) else []
        meant = {edges.files[n] for n in rows if edges.spelled[column][n] in texts}
        assert meant <= edges.planned(bounds), f"Iceberg would skip files for {bound}"
        assert meant <= edges.met(bounds), f"PyIceberg would skip files for {bound}"

    find()


@pytest.mark.parametrize("only_inserts", [False, True], ids=["merge", "append"])
def test_rows_of_the_least_key_are_met(
    spark: SparkSession, folder: str, monkeypatch: pytest.MonkeyPatch, *, only_inserts: bool
) -> None:
    name = f"stage.keys.least_{only_inserts}"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, n int) USING iceberg PARTITIONED BY (truncate(10, id)) "
        f"LOCATION '{folder}/{name}' TBLPROPERTIES ('format-version' = '2', 'write.distribution-mode' = 'none', "
        "'write.spark.fanout.enabled' = 'true')"
    )
    ids = [-LONG, *range(40)]
    monkeypatch.setattr(changes, "LISTED", 0)  # else the keys are listed
    for n in (1, 2):
        rows = spark.createDataFrame([(id, n) for id in ids], "id long, n int").coalesce(1)
        merged(spark, name, rows, MergeWork(("id",), only_inserts=only_inserts))
    last = 1 if only_inserts else 2
    assert sorted((row.id, row.n) for row in spark.table(name).collect()) == [(id, last) for id in ids]


def merged(spark: SparkSession, name: str, rows: DataFrame, work: MergeWork) -> Merged:
    return merge(spark, Fork(name, loaded(spark, name).metadata, "token", "demo.rows"), rows, work, {})[0]


@pytest.mark.long("test_merge.py refuses text of the same kind.")
def test_keys_that_are_no_text_are_refused(spark: SparkSession, folder: str) -> None:
    name = "stage.keys.named"
    spark.sql(f"CREATE TABLE {name} (name string, n int) USING iceberg LOCATION '{folder}/named'")
    rows = spark.sql(
        "SELECT CAST(key AS string) AS name, 1 AS n FROM VALUES (X'41FF'), (X'C3A9'), (X'EFBFBD') AS (key)"
    )
    with pytest.raises(changes.ChangesError, match=r"demo\.rows: 1 changes have a key that is not UTF-8.*name=X'41FF'"):
        merged(spark, name, rows, MergeWork(("name",)))
    merged(spark, name, rows.where("hex(name) <> '41FF'"), MergeWork(("name",)))
    assert sorted(row.name for row in spark.table(name).collect()) == ["é", "\ufffd"]
