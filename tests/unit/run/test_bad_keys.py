"""Which partitions a failed run names as bad."""

from __future__ import annotations

from lakehouse_assets.commit.audit import AuditFinding
from lakehouse_assets.drive.chunks import Chunk, WorkerFailure
from lakehouse_assets.run.run import bad_keys

ONE, MANY, WHOLE = Chunk(0, ("a",)), Chunk(1, ("b", "c")), Chunk(0, ())


def test_a_worker_that_had_one_partition_names_it_and_one_that_had_many_none() -> None:
    assert bad_keys([WorkerFailure(ONE, "x"), WorkerFailure(MANY, "x")], []) == {"a"}


def test_a_step_names_the_partitions_that_it_could_not_compute() -> None:
    assert bad_keys([WorkerFailure(MANY, "x", bad=("c",))], []) == {"c"}


def test_a_table_without_partitions_is_bad_itself() -> None:
    assert bad_keys([WorkerFailure(WHOLE, "x")], []) == {""}


def test_what_the_audit_names_is_bad_too() -> None:
    findings = [AuditFinding("empty", "", {}, bad=("c",)), AuditFinding("unique", "", {})]
    assert bad_keys([WorkerFailure(ONE, "x")], findings) == {"a", "c"}
