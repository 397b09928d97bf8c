"""A hand-off's table, partitions and view in Glue."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lakehouse_assets.environment.aws import batches, error_code, is_transient
from lakehouse_assets.errors import HandOffRefused, HandOffUnfinished
from lakehouse_assets.extensions.hand_off.hive import hive_type, quoted, trino_type, values_of
from lakehouse_assets.extensions.hand_off.records import Clock, HandOffPlan, Version, Written, backoff

logger = logging.getLogger(__name__)

OURS = "lakehouse.hand-off"
"""The parameter that marks a hand-off's tables and view with its asset's key."""
VERSION, UUID, SNAPSHOT, SEQUENCE = (
    "lakehouse.version",
    "lakehouse.table-uuid",
    "lakehouse.snapshot-id",
    "lakehouse.sequence-number",
)
"""Parameters that identify the version, and the snapshot whose rows it has."""
# How Hive reads and writes Parquet.
PARQUET = {
    "InputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
    "SerdeInfo": {
        "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "Parameters": {"serialization.format": "1"},
    },
}
LONGEST_COMMENT, LONGEST_DESCRIPTION = 255, 2048
"""Of a column's comment (https://docs.aws.amazon.com/glue/latest/webapi/API_Column.html) and a view's description
(https://docs.aws.amazon.com/glue/latest/webapi/API_TableInput.html), in characters."""
NOT_IN_LINES = re.compile(r"[^\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff\r\n\t]+")
"""What Glue refuses in texts of several lines."""
NOT_IN_A_LINE = re.compile(f"(?:{NOT_IN_LINES.pattern}|[\r\n])+")
"""What Glue refuses in a line."""


def table_input(key: str, plan: HandOffPlan, version: Version) -> dict[str, Any]:
    """Returns a version's TableInput."""
    return {
        "Name": version.table,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"EXTERNAL": "TRUE", "classification": "parquet", **parameters(key, plan, version)},
        "PartitionKeys": _columns(plan, plan.partitioned_by),
        "StorageDescriptor": _descriptor(plan, version.location),
    }


def partition_inputs(plan: HandOffPlan, version: Version, written: Written) -> dict[tuple[str, ...], dict[str, Any]]:
    """Returns a PartitionInput for each folder, by the folder's values; none for a table without partitions."""
    if not plan.partitioned_by:
        return {}
    folders = {path.rpartition("/")[0] for path in written.files}
    # Many files share a folder. values_of() expects a path of a file, thus the slash.
    found = {values_of(f"{folder}/"): f"{version.location}/{folder}" for folder in sorted(folders)}
    return {
        values: {"Values": [*values], "StorageDescriptor": _descriptor(plan, location)}
        for values, location in found.items()
    }


def view_input(key: str, plan: HandOffPlan, version: Version, description: str) -> dict[str, Any]:
    """Returns the TableInput of the readers' view.

    With presto_view, Athena and Trino read ViewOriginalText: base64 JSON in a comment
    (io.trino.plugin.hive.ViewReaderUtil). Spark and Hive read ViewExpandedText
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
    """Returns the view's query for Trino."""
    return f"SELECT {', '.join(map(quoted, names))} FROM {quoted(database)}.{quoted(table)}"


def parameters(key: str, plan: HandOffPlan, version: Version) -> dict[str, str]:
    """Returns the parameters that tell whose a table or view is, and which version and snapshot it has."""
    return {
        OURS: key,
        VERSION: version.name,
        UUID: str(plan.table_uuid),
        SNAPSHOT: str(plan.snapshot_id),
        SEQUENCE: str(plan.sequence_number),
    }


def of_parameters(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the parameters of a table or view that Glue returned; empty if it has none."""
    given: Mapping[str, str] = found.get("Parameters", {})
    return given


def unreadable_parameters(found: Mapping[str, str]) -> list[str]:
    """Returns the missing or garbled identifying parameters."""
    return [
        name
        for name in (VERSION, UUID, SNAPSHOT, SEQUENCE)
        if not found.get(name) or (name in (SNAPSHOT, SEQUENCE) and not found[name].isdecimal())
    ]


def _descriptor(plan: HandOffPlan, location: str) -> dict[str, Any]:
    """Returns the StorageDescriptor of a folder: the columns in its files, without those in its path."""
    names = [field.name for field in plan.schema.fields if field.name not in plan.partitioned_by]
    # The slash keeps a listing of the folder from matching other folders with this prefix.
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


AT_ONCE = 100
"""The most partitions of one BatchCreatePartition
(https://docs.aws.amazon.com/glue/latest/webapi/API_BatchCreatePartition.html)."""
ROUNDS = 3
"""How often missing partitions are created: one call can succeed for some of them and fail for others."""
ATTEMPTS = 8
"""Tries to switch the view if answers get lost or others switch it: about 2 minutes."""
LATER = ("OperationTimeoutException", "ResourceNotReadyException", "FederationSourceRetryableException")
"""Glue's errors of requests that may still land, without a status of 500
(https://docs.aws.amazon.com/glue/latest/webapi/CommonErrors.html)."""
# Another hand-off has switched or created the view since it was read.
CONFLICTS = ("ConcurrentModificationException", "AlreadyExistsException")


def may_have_landed(error: Exception) -> bool:
    """Whether a failed call may have landed, or may still land."""
    return is_transient(error) or error_code(error) in LATER


@dataclass(frozen=True)
class GlueRegistry:
    """A hand-off's tables and view in Glue. All methods raise boto3's errors."""

    glue: Any
    """A client that retries calls."""
    glue_once: Any
    """A client that never retries, so that each answer is that of a known request."""
    key: str
    """The asset's key, as in the parameter OURS."""
    clock: Clock

    def find_view(self, plan: HandOffPlan) -> Mapping[str, Any] | None:
        """Returns the readers' view, or None.

        Raises HandOffRefused if it is someone else's, or doesn't name its version: nobody would know which version must
        stay, and whether it is newer.
        """
        found = self._find(plan.database, plan.view)
        if found is not None and of_parameters(found).get(OURS) != self.key:
            whose = of_parameters(found).get(OURS)
            raise HandOffRefused(
                f"{plan.glue} in Glue "
                f"{f'belongs to the hand-off {whose}' if whose else 'is not a view of a hand-off'}: its parameter "
                f"{OURS} is not {self.key}. Choose another name, or delete it. Nothing changes for readers"
            )
        if found is not None and (names := unreadable_parameters(of_parameters(found))):
            raise HandOffRefused(
                f"{plan.glue} in Glue does not say which version it points to: its parameters {', '.join(names)} are "
                "missing or were changed. Delete the view and materialize again, which creates a new one. Until then "
                "nothing changes for readers"
            )
        return found

    def check_database(self, plan: HandOffPlan) -> None:
        """Checks that the plan's database exists. Raises HandOffRefused if not."""
        try:
            self.glue.get_database(Name=plan.database)
        except self.glue.exceptions.EntityNotFoundException as error:
            raise HandOffRefused(
                f"{plan.glue}: Glue has no database {plan.database} in this account and region. Create it"
            ) from error

    def register(self, plan: HandOffPlan, version: Version, written: Written) -> None:
        """Creates what is missing of a version's table and partitions, before readers get it.

        Raises HandOffUnfinished if Glue leaves partitions out.
        """
        self._create_table(plan, version)
        wanted = partition_inputs(plan, version, written)
        if not wanted:
            return
        for _ in range(ROUNDS):
            missing = self._missing(version, wanted)
            if not missing:
                return
            for some in batches(missing, AT_ONCE):
                self.glue.batch_create_partition(
                    DatabaseName=version.database,
                    TableName=version.table,
                    PartitionInputList=[wanted[values] for values in some],
                )
        if missing := self._missing(version, wanted):
            raise HandOffUnfinished(
                f"{version.database}.{version.table}: Glue did not store {len(missing)} of {len(wanted)} partitions, "
                f"such as {'/'.join(missing[0])}. Readers keep the previous version. Re-execute the run from failure"
            )

    def switch(
        self,
        plan: HandOffPlan,
        version: Version,
        description: str,
        view_is_newer: Callable[[Mapping[str, str]], bool],
    ) -> str:
        """Points the view to a version in one call, unless it has a newer one. Returns the version that readers get.

        view_is_newer: tells it from the view's parameters. Raises as find_view(), and HandOffUnfinished if the switch
        may still land or others keep switching.
        """
        wanted = view_input(self.key, plan, version, description)
        # The last error after which a try may still land.
        unknown: Exception | None = None
        for wait in islice(backoff(), ATTEMPTS):
            try:
                found = self.find_view(plan)
                current = of_parameters(found or {})
                # An earlier try may have landed: the view then has this version.
                if current.get(VERSION) == version.name or (found and view_is_newer(current)):
                    return current[VERSION]
                self._put_view(plan, wanted, found)
            except Exception as error:
                if error_code(error) in CONFLICTS:
                    logger.info("%s: another hand-off has switched it meanwhile", plan.glue)
                elif may_have_landed(error):
                    unknown = error
                elif unknown is None:
                    raise
                else:  # an earlier try may still land, so that this refusal does not decide
                    break
                self.clock.sleep(wait)
            else:
                return version.name
        raise HandOffUnfinished(
            f"{plan.glue}: it is unknown whether it points to {version.table} now or soon will; the last error was "
            f"{unknown!r}. What was written is kept. Re-execute the run from failure: it checks this and continues"
            if unknown
            else f"{plan.glue}: other hand-offs have switched it {ATTEMPTS} times meanwhile. Re-execute the run from "
            "failure"
        )

    def drop(self, version: Version) -> None:
        """Deletes a version's table and partitions, if they exist."""
        try:
            self.glue.delete_table(DatabaseName=version.database, Name=version.table)
        except self.glue.exceptions.EntityNotFoundException:
            return

    # By glue_once: after a retry, a conflict could come from the first try of the same call.
    def _put_view(self, plan: HandOffPlan, wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> None:
        if found is None:
            self.glue_once.create_table(DatabaseName=plan.database, TableInput=wanted)
        else:
            # Glue refuses it if the view has changed since it was read; Iceberg's commits rely on the same.
            self.glue_once.update_table(
                DatabaseName=plan.database, TableInput=wanted, VersionId=found["VersionId"], SkipArchive=True
            )

    def _create_table(self, plan: HandOffPlan, version: Version) -> None:
        """Creates the version's table. Raises HandOffRefused if somebody else has created it."""
        try:
            self.glue.create_table(DatabaseName=version.database, TableInput=table_input(self.key, plan, version))
        except self.glue.exceptions.AlreadyExistsException:  # an earlier attempt's, or somebody else's
            found = of_parameters(self._find(version.database, version.table) or {})
            if (found.get(OURS), found.get(VERSION)) != (self.key, version.name):
                raise HandOffRefused(
                    f"{version.database}.{version.table} in Glue was not created by this hand-off. Delete it, or "
                    "materialize again in a new run"
                ) from None

    def _find(self, database: str, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.glue.get_table(DatabaseName=database, Name=name)["Table"]
        except self.glue.exceptions.EntityNotFoundException:
            return None
        return found

    def _missing(self, version: Version, wanted: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
        found = self.glue.get_paginator("get_partitions").paginate(
            DatabaseName=version.database, TableName=version.table, ExcludeColumnSchema=True
        )
        there = {tuple(one["Values"]) for page in found for one in page["Partitions"]}
        return [values for values in wanted if values not in there]
