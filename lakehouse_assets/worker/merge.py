"""Merges a step's changes into a private fork: by Spark's MERGE, or by an append if no file can hold a match."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import IntegerType, LongType, TimestampType, TimestamptzType
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from lakehouse_assets.wire.receipts import FailedCheck
from lakehouse_assets.wire.work import Bound, Merged, MergeWork, truncates_in_order
from lakehouse_assets.worker.changes import (
    DELETES,
    OTHER,
    RETURNED,
    as_stored,
    bounded_types,
    bounds,
    comparable_row,
    condition,
    facts_of,
    keys_as_stored,
    latest,
    refuse_other_parts,
    refuse_unclear,
)
from lakehouse_assets.worker.row_checks import failed_checks

PROPERTY = "spark.sql.iceberg.snapshot-property."
"""The prefix of settings that Iceberg reads from 1.11 on: before, the commit of a MERGE does not name the run."""
METRIC = "spark.merge-into.num-target-rows-"
"""The prefix of Spark's counts in a snapshot's summary, from Spark 4.1 on."""
KINDS = ("inserted", "updated", "deleted")
COPIED = "copied"
"""Unchanged rows in a new file."""
WRITTEN = {"added-data-files", "deleted-data-files", "added-delete-files"}
"""The summary of a snapshot with changes has one of these keys (org.apache.iceberg.SnapshotSummary)."""
VERBATIM = {
    # A key may hold ${text}, which Spark would replace as a variable.
    "spark.sql.variable.substitute": "false",
    # A quote in a key is escaped.
    "spark.sql.parser.escapedStringLiterals": "false",
}
HASHED = {
    # The most bytes of changes in a task for which Spark joins by a hash table, so that neither side needs sorting: a
    # million changes into ten million rows took 17 s instead of 28. More changes are sorted, which can spill to disk,
    # unlike a hash table. Spark takes no lower value.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
}
FILTER = "spark.sql.optimizer.runtime.bloomFilter"
FILTERED = {
    # A Bloom filter of the changes' keys drops, before the shuffle for the join, most rows of the target that no change
    # can match. Spark makes such filters itself (InjectRuntimeFilter), but at these sizes only if told to. It would
    # make one for each key; number.threshold leaves only the first, which is the hash of all keys.
    f"{FILTER}.enabled": "true",
    f"{FILTER}.applicationSideScanSizeThreshold": "0",
    # No limit on the changes' size: MOST_FILTERED limits their number.
    f"{FILTER}.creationSideThreshold": str(2**62),
    "spark.sql.optimizer.runtimeFilter.number.threshold": "1",
}
OUTER = {
    # Merge-on-read joins once, by an outer join, as it must insert too. Spark makes no filter if it thinks that it can
    # broadcast the few changes; in an outer join it can't, so this forbids it.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
BITS_A_CHANGE = 10
"""Bits of the filter for each change: about one row in a hundred passes it without a match."""
MOST_FILTERED = 10_000_000
"""The most changes for a filter. Spark's filters have 64 Mi bits at most (maxNumBits): with so many changes, one row in
ten passes without a match, with twice as many most rows do."""
BUCKETED = {
    # A target that is bucketed by a key is read bucket by bucket, and only the changes are shuffled.
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.sources.v2.bucketing.shuffle.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.iceberg.planning.preserve-data-grouping": "true",
}


@dataclass(frozen=True)
class Fork:
    """A private copy of the table's metadata to merge changes into. Later, the run lands what was added to it."""

    name: str
    """The fork's name in Spark."""
    base: TableMetadata
    """The fork as it began."""
    token: str
    """The run's, for the commit's summary."""
    table: str
    """The table's identifier, for messages."""

    @property
    def base_id(self) -> int | None:
        """The snapshot before the merge, if any."""
        return self.base.current_snapshot_id


def merge(
    spark: SparkSession,
    fork: Fork,
    rows: DataFrame,
    work: MergeWork,
    checks: Mapping[str, str],
    undeclared: Collection[str] = (),
) -> tuple[Merged, tuple[FailedCheck, ...]]:
    """Merges the rows into the fork, in at most one commit. Returns what it did, and the failed checks.

    checks: on inserted and updated rows. undeclared: the table's columns that the rows lack; updates keep their values.
    Raises ChangesError, CheckError, and what Spark raises.
    """
    fields = spark.table(fork.name).schema.fields
    schema = StructType([field for field in fields if field.name not in undeclared])
    stored = as_stored(latest(keys_as_stored(rows, schema, work.keys, fork.table), work), schema)
    refuse_other_parts(stored, schema, fork.table)
    changes, facts = _read_once(stored, work, joined=fork.base_id is not None)
    if not facts.rows:
        return Merged(), ()
    refuse_unclear(changes, facts, work, fork.table)
    failed = failed_checks(changes.where(f"NOT `{DELETES}`").drop(DELETES, RETURNED, OTHER), checks)
    # By another bound, Iceberg might skip files with matching rows.
    found = tuple(bound for bound in bounds(changes, facts, work.keys) if is_projected(bound, fork.base))
    within = condition(found, schema, "t")
    with _configured(spark, {PROPERTY + "lakehouse.token": fork.token, **VERBATIM}):
        if fork.base_id is not None and _may_meet_rows(spark, fork, within, work):
            same, settings = moving_little(fork, changes.schema, facts.rows, work)
            on = " AND ".join([*same, *(f"t.`{key}` = s.`{key}`" for key in work.keys), within])
            view = f"changes_{time.time_ns()}"
            # True of each row: Spark makes a filter from changes only if they are filtered themselves.
            changes.where(f"`{RETURNED}` > 0").createOrReplaceTempView(view)
            try:
                with _configured(spark, {**HASHED, **settings}):
                    spark.sql(merge_sql(fork.name, view, on, schema, work, undeclared))
                    done = _counted(spark, fork, view, on, schema, work)
            finally:
                spark.catalog.dropTempView(view)
        else:
            done = {**dict.fromkeys(KINDS, 0), "inserted": facts.rows - facts.deletes}
            if done["inserted"]:
                _append(changes, fork, schema, undeclared)
    in_vain = facts.deletes - done["deleted"]  # deletes of keys that the table lacks
    # The others found a row, whether they changed it or not.
    matched = facts.rows - done["inserted"] - in_vain
    left_out = facts.returned - facts.rows
    return Merged(bounds=found, changes=facts.returned, left_out=left_out, matched=matched, **done), failed


def _may_meet_rows(spark: SparkSession, fork: Fork, within: str, work: MergeWork) -> bool:
    """Whether Iceberg plans to read any file for the condition, which bounds the changes. Reads no data."""
    # An empty plan has no partitions.
    return spark.table(fork.name).alias("t").where(within).select(*work.keys).rdd.getNumPartitions() > 0


def _append(changes: DataFrame, fork: Fork, schema: StructType, undeclared: Collection[str]) -> None:
    """Appends the changes that insert: faster than a MERGE, with its join and larger plan."""
    columns = [*(f"`{name}`" for name in schema.names), *(f"NULL AS `{name}`" for name in undeclared)]
    rows = changes.where(f"NOT `{DELETES}`").selectExpr(*columns)
    # Distributed as by a MERGE: latest() has shuffled the rows by key, so otherwise each task might write a file to
    # each partition.
    distribution = fork.base.properties.get("write.merge.distribution-mode", "hash")
    writer = rows.writeTo(fork.name).option("distribution-mode", distribution)
    writer.option("snapshot-property.lakehouse.token", fork.token).append()


def _read_once(changes: DataFrame, work: MergeWork, *, joined: bool) -> tuple[DataFrame, Row]:
    """Returns the changes as a checkpoint, and their counts.

    Only a checkpoint lets Spark 4.1 plan a MERGE of rows from another Iceberg table ("No plan for TableReference"). But
    it keeps the estimated size, often too large for a filter; of rows that were persisted first, Spark knows the real
    size. Lost persisted rows are computed again, perhaps differently: so the rows of the checkpoint are counted.
    """
    # Without a join nobody needs the size, and rows with many columns take long to persist.
    if joined:
        changes.persist()
    try:
        read = changes.localCheckpoint()
    finally:
        changes.unpersist()
    return read, facts_of(read, work.keys)


def merge_sql(
    fork: str, changes: str, on: str, schema: StructType, work: MergeWork, undeclared: Collection[str] = ()
) -> str:
    """Returns the MERGE as SQL, in which t is the fork and s the changes. A change that equals its row updates nothing.

    on: the condition by which a change matches a row.
    """
    update = ", ".join(f"t.`{name}` = s.`{name}`" for name in schema.names)
    names = ", ".join(f"`{name}`" for name in (*schema.names, *undeclared))
    values = ", ".join([*(f"s.`{name}`" for name in schema.names), *("NULL" for _ in undeclared)])
    clauses = [
        f"WHEN MATCHED AND s.`{DELETES}` THEN DELETE" if work.delete_when else "",
        "" if work.only_inserts else f"WHEN MATCHED AND {_differs(schema)} THEN UPDATE SET {update}",
        f"WHEN NOT MATCHED AND NOT s.`{DELETES}` THEN INSERT ({names}) VALUES ({values})",
    ]
    return f"MERGE INTO {fork} t USING {changes} s ON {on} {' '.join(clauses)}"


def moving_little(fork: Fork, changes: StructType, rows: int, work: MergeWork) -> tuple[list[str], dict[str, str]]:
    """Returns conditions and settings with which Spark shuffles few rows of the fork for the join.

    It shuffles none if the fork is bucketed by a key, all for an anti join or too many changes, else those that pass a
    Bloom filter. The conditions, true of equal keys, must come before those of the keys: Spark filters by the first.
    """
    base, name_of = fork.base, fork.base.schema().find_column_name
    buckets = {name_of(one.source_id) for one in base.spec().fields if isinstance(one.transform, BucketTransform)}
    if buckets & {*work.keys}:
        return [], BUCKETED
    if work.only_inserts or rows > MOST_FILTERED:  # Spark filters no side of the anti join that only inserts
        return [], {}
    hashed = bounded_types(changes, work.keys)
    hashes = (f"xxhash64({', '.join(f'{side}.`{key}`' for key in hashed)})" for side in "ts")
    size = {f"{FILTER}.expectedNumItems": str(rows), f"{FILTER}.numBits": str(rows * BITS_A_CHANGE)}
    outer = OUTER if base.properties.get("write.merge.mode") == "merge-on-read" else {}
    return [" = ".join(hashes)] if hashed else [], {**FILTERED, **size, **outer}


def _differs(schema: StructType) -> str:
    """Returns SQL that is true of a change unlike its row: one comparison, as the optimizer looks at each of many."""
    return f"NOT ({comparable_row(schema, 't.')} <=> {comparable_row(schema, 's.')})"


@contextmanager
def _configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets these settings, and restores the earlier ones afterwards: the session may then serve another run."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


def counted_by_spark(summary: Mapping[str, str]) -> dict[str, int] | None:
    """Returns Spark's counts of inserted, updated and deleted rows; None before 4.1, or if they don't add up.

    If a task runs twice, Spark counts its rows twice, but Iceberg counts the rows of files once
    (org.apache.iceberg.SnapshotSummary). Spark counts no row less than once: if both sums are equal, its counts are
    right.
    """
    if METRIC + COPIED not in summary:
        return None
    rows = {kind: int(summary[METRIC + kind]) for kind in (*KINDS, COPIED)}
    copied = rows.pop(COPIED)
    # Merge-on-read deletes rows by their positions, copy-on-write by replacing files.
    deletes = _number(summary, "added-position-deletes") - _number(summary, "removed-position-deletes")
    in_new_files, gone = _number(summary, "added-records"), _number(summary, "deleted-records") + deletes
    added_up = copied + rows["inserted"] + rows["updated"], copied + rows["updated"] + rows["deleted"]
    return rows if added_up == (in_new_files, gone) else None


def _number(summary: Mapping[str, str], name: str) -> int:
    return int(summary.get(name, 0))


def _counted(
    spark: SparkSession, fork: Fork, changes: str, on: str, schema: StructType, work: MergeWork
) -> dict[str, int]:
    """Returns the rows inserted, updated and deleted: Spark's counts, or those of a join with the rows before."""
    # The fork began with at most one snapshot, its base's; another one is this merge's.
    snapshots = spark.sql(f"SELECT snapshot_id, summary FROM {fork.name}.snapshots").collect()
    summary = next((dict(row.summary) for row in snapshots if row.snapshot_id != fork.base_id), {})
    if not WRITTEN & summary.keys():
        # The merge changed nothing. Spark then has no counts, if it needed no join.
        return dict.fromkeys(KINDS, 0)
    if work.only_inserts:
        return {"inserted": _number(summary, "added-records"), "updated": 0, "deleted": 0}
    if told := counted_by_spark(summary):
        return told
    # `#there` is null for a change without a row, as the join is outer.
    cases = {
        "inserted": f"t.`#there` IS NULL AND NOT s.`{DELETES}`",
        "updated": f"t.`#there` AND NOT s.`{DELETES}` AND {_differs(schema)}",
        "deleted": f"t.`#there` AND s.`{DELETES}`",
    }
    counts = ", ".join(f"count_if({case}) AS {kind}" for kind, case in cases.items())
    there = f"(SELECT *, true AS `#there` FROM {fork.name} VERSION AS OF {fork.base_id})"
    (row,) = spark.sql(f"SELECT {counts} FROM {changes} s LEFT JOIN {there} t ON {on}").collect()
    counted: dict[str, int] = row.asDict()
    return counted


FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds of the years 1 to 9999, which Spark and Python promise. Partition values by hour overflow from the year
246953 on."""


def is_projected(bound: Bound, metadata: TableMetadata) -> bool:
    """Whether planning by this bound finds every file with rows within it, in Java and in PyIceberg.

    Java's partition values can overflow, and then have no order; PyIceberg's never do.
    """
    texts = bound.values or (bound.low, bound.high)
    # Of the bounded types, those whose partition values can overflow.
    match metadata.schema().find_type(bound.column):
        case TimestampType() | TimestamptzType():
            return all(FIRST <= int(text) <= LAST for text in texts)
        case IntegerType() | LongType():
            least = min(map(int, texts))
            source = metadata.schema().find_field(bound.column).field_id
            fields = (field for spec in metadata.partition_specs for field in spec.fields_by_source_id(source))
            widths = (f.transform.width for f in fields if isinstance(f.transform, TruncateTransform))
            return all(truncates_in_order(width, least) for width in widths)
    return True
