"""Says how a version's table, its partitions and the view that readers use are written in Glue, and reads the view.

Pure: what is asked of Glue, and when, is in glue_registry.py.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lakehouse_assets.hand_off.hive_paths import values_of
from lakehouse_assets.hand_off.hive_types import hive_type, quoted, trino_type
from lakehouse_assets.hand_off.records import HandOffPlan, Version, Written

OURS = "lakehouse.hand-off"
"""The parameter that tells what a hand-off made from what others made: its asset's key."""
VERSION, UUID, SNAPSHOT, SEQUENCE = (
    "lakehouse.version",
    "lakehouse.table-uuid",
    "lakehouse.snapshot-id",
    "lakehouse.sequence-number",
)
PARQUET = {
    "InputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
    "SerdeInfo": {
        "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "Parameters": {"serialization.format": "1"},
    },
}
LONGEST_COMMENT, LONGEST_DESCRIPTION = 255, 2048
"""The characters of a column's comment (https://docs.aws.amazon.com/glue/latest/webapi/API_Column.html) and of a view's
description (https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html)."""
NOT_IN_LINES = re.compile(r"[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff\r\n\t]+")
"""What Glue refuses in texts of several lines: control characters."""
NOT_IN_A_LINE = re.compile(f"(?:{NOT_IN_LINES.pattern}|[\r\n])+")
"""What it refuses in those of one line: line breaks, too."""


def table_input(key: str, plan: HandOffPlan, version: Version) -> dict[str, Any]:
    """Returns the TableInput of a version's own table. key: the hand-off's asset key, as text."""
    return {
        "Name": version.table,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"EXTERNAL": "TRUE", "classification": "parquet", **parameters(key, plan, version)},
        "PartitionKeys": _columns(plan, plan.partitioned_by),
        "StorageDescriptor": _descriptor(plan, version.location),
    }


def partition_inputs(plan: HandOffPlan, version: Version, written: Written) -> dict[tuple[str, ...], dict[str, Any]]:
    """Returns a PartitionInput for each folder of a version, by its values; none without partition columns."""
    if not plan.partitioned_by:
        return {}
    folders = {path.rpartition("/")[0] for path in written.files}
    found = {values_of(f"{folder}/"): f"{version.location}/{folder}" for folder in sorted(folders)}
    return {
        values: {"Values": [*values], "StorageDescriptor": _descriptor(plan, location)}
        for values, location in found.items()
    }


def view_input(key: str, plan: HandOffPlan, version: Version, description: str) -> dict[str, Any]:
    """Returns the TableInput of the view that readers use, on a version's table.

    Athena and Trino read ViewOriginalText, where the parameter presto_view says so: JSON in base64 in a comment
    (io.trino.plugin.hive.ViewReaderUtil). Spark and Hive read ViewExpandedText, which is SQL of theirs
    (org.apache.spark.sql.hive.client.HiveClientImpl).
    """
    names = [field.name for field in plan.schema.fields]
    definition = {
        "originalSql": select_from(names, plan.database, version.table),
        "catalog": "awsdatacatalog",
        "schema": plan.database,
        "columns": [{"name": field.name, "type": trino_type(field.field_type)} for field in plan.schema.fields],
    }
    encoded = base64.b64encode(json.dumps(definition).encode()).decode()
    hive_names = ", ".join(f"`{name}`" for name in names)
    return {
        "Name": plan.view,
        "Description": NOT_IN_LINES.sub(" ", description)[:LONGEST_DESCRIPTION],
        "TableType": "VIRTUAL_VIEW",
        "Parameters": {"presto_view": "true", "comment": "Presto View", **parameters(key, plan, version)},
        "PartitionKeys": [],
        "StorageDescriptor": {"Columns": _columns(plan, names), "Location": "", "SerdeInfo": {}},
        "ViewOriginalText": f"/* Presto View: {encoded} */",
        "ViewExpandedText": f"SELECT {hive_names} FROM `{plan.database}`.`{version.table}`",
    }


def select_from(names: Iterable[str], database: str, table: str) -> str:
    """Returns the view's query, as Trino writes it."""
    return f"SELECT {', '.join(map(quoted, names))} FROM {quoted(database)}.{quoted(table)}"


def parameters(key: str, plan: HandOffPlan, version: Version) -> dict[str, str]:
    """Returns the parameters by which a table or view says of which version it is."""
    return {
        OURS: key,
        VERSION: version.name,
        UUID: str(plan.table_uuid),
        SNAPSHOT: str(plan.snapshot_id),
        SEQUENCE: str(plan.sequence_number),
    }


def of_parameters(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the parameters of a table as Glue gives it."""
    given: Mapping[str, str] = found.get("Parameters", {})
    return given


def unreadable_parameters(found: Mapping[str, str]) -> list[str]:
    """Returns which parameters a view lacks, or has garbled, of those that say of which version it is."""
    return [
        name
        for name in (VERSION, UUID, SNAPSHOT, SEQUENCE)
        if not found.get(name) or (name in (SNAPSHOT, SEQUENCE) and not found[name].isdecimal())
    ]


def _descriptor(plan: HandOffPlan, location: str) -> dict[str, Any]:
    names = [field.name for field in plan.schema.fields if field.name not in plan.partitioned_by]
    # With the slash: without it, listing a version's folder would find those that begin with its name, too.
    return {"Columns": _columns(plan, names), "Location": f"{location}/", **PARQUET}


def _columns(plan: HandOffPlan, names: Iterable[str]) -> list[dict[str, str]]:
    fields = {field.name: field for field in plan.schema.fields}
    return [
        {
            "Name": name,
            "Type": hive_type(fields[name].field_type),
            **({"Comment": NOT_IN_A_LINE.sub(" ", doc)[:LONGEST_COMMENT]} if (doc := fields[name].doc) else {}),
        }
        for name in names
    ]
