"""Registers versions in Glue and switches the view that readers use, by one call that lands or does not.

What the tables and the view say is in glue_inputs.py. When this is asked for is hand_over.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lakehouse_assets.environment.aws import batches, error_code, is_transient
from lakehouse_assets.errors import HandOffRefused, HandOffUnfinished
from lakehouse_assets.hand_off.glue_inputs import (
    OURS,
    VERSION,
    of_parameters,
    partition_inputs,
    table_input,
    unreadable_parameters,
    view_input,
)
from lakehouse_assets.hand_off.records import HandOffPlan, Version, Written
from lakehouse_assets.hand_off.waits import Clock, backoff

logger = logging.getLogger(__name__)

AT_ONCE = 100
"""The most partitions of one BatchCreatePartition (https://docs.aws.amazon.com/glue/latest/webapi/API_BatchCreatePartition.html)."""
ROUNDS = 3
"""How often partitions that are missing are created: Glue answers for each one by itself."""
ATTEMPTS = 8
"""How often the view is switched at most, where answers get lost or others switch it: about 2 minutes of waits."""
LATER = ("OperationTimeoutException", "ResourceNotReadyException", "FederationSourceRetryableException")
"""Glue's errors of requests that may have landed, or will; they have no status of 500
(https://docs.aws.amazon.com/glue/latest/webapi/CommonErrors.html)."""
CONFLICTS = ("ConcurrentModificationException", "AlreadyExistsException")


def may_have_landed(error: Exception) -> bool:
    """Says whether a call that failed with this error may have landed, or may yet: no refusal by the service."""
    return is_transient(error) or error_code(error) in LATER


@dataclass(frozen=True)
class GlueRegistry:
    """The tables and the view of one hand-off in Glue. Every method raises what boto3 raises."""

    glue: Any
    """A client that repeats calls."""
    glue_once: Any
    """A client that makes each call once: of each answer it is known which request it is for."""
    key: str
    """The hand-off's asset key, as text."""
    clock: Clock

    def find_view(self, plan: HandOffPlan) -> Mapping[str, Any] | None:
        """Returns the view that readers use, as Glue has it; None where there is none.

        Raises HandOffRefused where the name is somebody else's, or the view does not say of which version it is: then
        nobody knows what readers get, which may not be removed, and whether it is newer.
        """
        found = self._find(plan.database, plan.view)
        if found is not None and of_parameters(found).get(OURS) != self.key:
            whose = of_parameters(found).get(OURS)
            raise HandOffRefused(
                f"{plan.glue} in Glue is {f'of the hand-off {whose}' if whose else 'no view of a hand-off'}: its "
                f"parameter {OURS} is not {self.key}. Choose another name, or delete it. Readers go on as before"
            )
        if found is not None and (names := unreadable_parameters(of_parameters(found))):
            raise HandOffRefused(
                f"{plan.glue} in Glue does not say which version it leads to: its parameters {', '.join(names)} are "
                "missing or changed. Delete the view, and materialize again: that makes it anew. Until then readers "
                "go on as before"
            )
        return found

    def check_database(self, plan: HandOffPlan) -> None:
        """Raises HandOffRefused where the database does not exist."""
        try:
            self.glue.get_database(Name=plan.database)
        except self.glue.exceptions.EntityNotFoundException as error:
            raise HandOffRefused(
                f"{plan.glue}: Glue has no database {plan.database} in this account and region. Create it"
            ) from error

    def register(self, plan: HandOffPlan, version: Version, written: Written) -> None:
        """Creates a version's own table with all its partitions, or what of it is missing; nobody uses it yet.

        Raises HandOffUnfinished where Glue leaves partitions out.
        """
        self._create_table(plan, version)
        wanted = partition_inputs(plan, version, written)
        for _ in range(ROUNDS if wanted else 0):
            found = self._locations(version)
            missing = [values for values in wanted if values not in found]
            if not missing:
                break
            for some in batches(missing, AT_ONCE):
                self.glue.batch_create_partition(
                    DatabaseName=version.database,
                    TableName=version.table,
                    PartitionInputList=[wanted[values] for values in some],
                )
        else:
            if wanted and (missing := [values for values in wanted if values not in self._locations(version)]):
                raise HandOffUnfinished(
                    f"{version.database}.{version.table}: Glue has not taken {len(missing)} of {len(wanted)} "
                    f"partitions, such as {'/'.join(missing[0])}. Readers go on with the version before. Re-execute "
                    "the run from failure"
                )

    def switch(
        self,
        plan: HandOffPlan,
        version: Version,
        description: str,
        is_outdated: Callable[[Mapping[str, str]], bool],
    ) -> str:
        """Has the view lead to a version, by one call. Returns the name of the version that readers get then.

        That is another one's where a newer one is there already. is_outdated: tells, by the view's parameters, whether
        its version is newer than this one.

        Raises HandOffRefused where Glue has refused it, HandOffUnfinished where nobody knows whether it lands.
        """
        wanted = view_input(self.key, plan, version, description)
        unknown: Exception | None = None
        for wait in islice(backoff(), ATTEMPTS):
            try:
                found = self.find_view(plan)
                current = of_parameters(found or {})
                if current.get(VERSION) == version.name or (found and is_outdated(current)):
                    return current[VERSION]
                self._put_view(plan, wanted, found)
            except Exception as error:
                if error_code(error) in CONFLICTS:
                    logger.info("%s: another one has switched it meanwhile", plan.glue)
                elif may_have_landed(error):
                    unknown = error
                elif unknown is None:
                    raise
                else:
                    break
                self.clock.sleep(wait)
            else:
                return version.name
        raise HandOffUnfinished(
            f"{plan.glue}: nobody knows whether it leads to {version.table} now or will in a moment; the last error "
            f"was {unknown!r}. What was written is kept. Re-execute the run from failure: it looks, and goes on"
            if unknown
            else f"{plan.glue}: other hand-offs have switched it {ATTEMPTS} times meanwhile. Re-execute the run from "
            "failure"
        )

    def drop(self, version: Version) -> None:
        """Deletes a version's own table with its partitions, if it is there."""
        try:
            self.glue.delete_table(DatabaseName=version.database, Name=version.table)
        except self.glue.exceptions.EntityNotFoundException:
            return

    def _put_view(self, plan: HandOffPlan, wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> None:
        if found is None:
            self.glue_once.create_table(DatabaseName=plan.database, TableInput=wanted)
        else:
            # Glue refuses it where the view has been changed since it was read; Iceberg's commits rely on the same.
            self.glue_once.update_table(
                DatabaseName=plan.database, TableInput=wanted, VersionId=found["VersionId"], SkipArchive=True
            )

    def _create_table(self, plan: HandOffPlan, version: Version) -> None:
        try:
            self.glue.create_table(DatabaseName=version.database, TableInput=table_input(self.key, plan, version))
        except self.glue.exceptions.AlreadyExistsException:
            found = of_parameters(self._find(version.database, version.table) or {})
            if (found.get(OURS), found.get(VERSION)) != (self.key, version.name):
                raise HandOffRefused(
                    f"{version.database}.{version.table} in Glue is somebody else's. Delete it, or materialize anew"
                ) from None

    def _find(self, database: str, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.glue.get_table(DatabaseName=database, Name=name)["Table"]
        except self.glue.exceptions.EntityNotFoundException:
            return None
        return found

    def _locations(self, version: Version) -> dict[tuple[str, ...], str]:
        """Returns the folders of the partitions that Glue has of a version, by their values."""
        found = self.glue.get_paginator("get_partitions").paginate(
            DatabaseName=version.database, TableName=version.table, ExcludeColumnSchema=True
        )
        return {
            tuple(one["Values"]): one["StorageDescriptor"]["Location"] for page in found for one in page["Partitions"]
        }
