"""Which columns beside the table's a merge takes."""

from __future__ import annotations

import pytest

from lakehouse_assets.wire.work import MergeWork
from lakehouse_assets.worker.changes import extra_columns


@pytest.mark.parametrize("name", ["seen", "@seen", "seen$", "größe", "a b"])
def test_it_takes_those_that_its_declaration_names(name: str) -> None:
    assert extra_columns(MergeWork(("id",), order_by=name), {name, "see", "other"}) == {name}
    assert extra_columns(MergeWork(("id",), delete_when=f"{name} = 'D'"), {name, "see", "other"}) == {name}
