"""Which partitions a failed run names as bad."""

from __future__ import annotations

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.drive.chunk import Chunk, WorkerFailure
from lakehouse_assets.run.bad_keys import bad_keys

ONE, MANY, WHOLE = Chunk(0, ("a",)), Chunk(1, ("b", "c")), Chunk(0, ())


def test_a_worker_that_had_one_partition_names_it_and_one_that_had_many_none() -> None:
    assert bad_keys([ONE, MANY], [WorkerFailure(ONE, "x"), WorkerFailure(MANY, "x")], []) == {"a"}


def test_a_step_names_the_partitions_that_it_could_not_compute() -> None:
    assert bad_keys([ONE, MANY], [WorkerFailure(MANY, "x", bad=("c",))], []) == {"c"}


def test_a_table_without_partitions_is_bad_itself() -> None:
    assert bad_keys([WHOLE], [WorkerFailure(WHOLE, "x")], []) == {""}


def test_the_audit_names_empty_partitions_and_the_chunk_that_it_speaks_of() -> None:
    empty = AuditFinding("empty", "", {"partitions": ["c"], "count": 1})
    assert bad_keys([ONE, MANY], [], [empty, AuditFinding("unique", "", {"chunk": 0})]) == {"a", "c"}
    assert bad_keys([ONE, MANY], [], [AuditFinding("unique", "", {"chunk": 1})]) == frozenset()
    assert bad_keys([ONE, MANY], [], [AuditFinding("required", "", {"partitions": {"day=a": 3}})]) == frozenset()
