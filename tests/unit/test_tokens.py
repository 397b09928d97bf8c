"""Run tokens over histories of every kind: published, expired, rolled back, cut."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from lakehouse_assets.lakehouse.errors import PublishRefused, RolledBack
from lakehouse_assets.lakehouse.tokens import KEEP_MS, find_published, outdated, token_property

NOW = 1_700_000_000_000


def history(*snapshots: tuple[int, int | None, int], main: int | None, published: int | str = 7) -> TableMetadata:
    """snapshots: (id, parent, sequence number); main: the current one; published: what the token's property says."""
    empty = new_table_metadata(
        Schema(NestedField(1, "n", LongType())), PartitionSpec(), UNSORTED_SORT_ORDER, "file:///t"
    )
    value = token_property("run", published, NOW) if isinstance(published, int) else {"lakehouse.run.run": published}
    return empty.model_copy(
        update={
            "properties": value,
            "snapshots": [
                Snapshot(snapshot_id=i, parent_snapshot_id=p, sequence_number=s, timestamp_ms=NOW, manifest_list="m")
                for i, p, s in snapshots
            ],
            "current_snapshot_id": main,
            "refs": {} if main is None else {"main": SnapshotRef(snapshot_id=main, snapshot_ref_type="branch")},
        }
    )


def test_a_run_without_a_token_is_not_published() -> None:
    assert find_published("t", history(main=None), "other run") is None


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(history((7, None, 1), main=7), id="current"),
        pytest.param(history((7, None, 1), (8, 7, 2), (9, 8, 3), main=9), id="ancestor"),
        pytest.param(history((9, None, 3), main=9), id="expired"),
        pytest.param(history((9, 8, 3), main=9), id="expired, parents named"),
        pytest.param(history((7, None, 1), (9, 8, 3), main=9), id="kept, the way to it expired (Java)"),
        pytest.param(history((7, None, 1), (9, None, 3), main=9), id="kept, the way to it expired (PyIceberg)"),
    ],
)
def test_published(metadata: TableMetadata) -> None:
    assert find_published("t", metadata, "run") == 7


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(history((6, None, 1), (7, 6, 2), main=6), id="rolled back"),
        pytest.param(history((6, None, 1), (7, 6, 2), (8, 6, 3), main=8), id="rolled back, then on"),
        pytest.param(history((6, 5, 2), (7, 6, 3), (8, 6, 4), main=8), id="rolled back, older ones expired"),
        pytest.param(history((7, None, 1), main=None), id="main removed"),
    ],
)
def test_rolled_back(metadata: TableMetadata) -> None:
    with pytest.raises(RolledBack, match="run published snapshot 7"):
        find_published("t", metadata, "run")


def test_a_property_somebody_spoilt_is_told() -> None:
    with pytest.raises(PublishRefused, match="'soon', expected <snapshot id>@<epoch ms>"):
        find_published("t", history(main=None, published="soon"), "run")


def test_only_tokens_of_another_month_are_outdated() -> None:
    properties = {
        **token_property("old", 1, NOW - KEEP_MS - 1),
        **token_property("young", 2, NOW - KEEP_MS),
        "lakehouse.run.spoilt": "soon",
        "lakehouse.owner": "1@1",
    }
    metadata = history(main=None).model_copy(update={"properties": properties})
    assert outdated(metadata, NOW) == ["lakehouse.run.old", "lakehouse.run.spoilt"]
