"""The pool lake_workers over real runs, on an instance with its daemon: the limit, waiting, terminating, dying.
Workers measure themselves (light_worker.py); the test asks what the UI asks (dagster_server.py)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import dagster as dg
import pytest

from lakehouse_assets.commit.tokens import PREFIX
from lakehouse_assets.drive.liveness import start_time
from lakehouse_assets.drive.slots import POOL, Slots
from lakehouse_assets.environment.catalog import load_lake
from lakehouse_assets.environment.process_locks import locks_of
from lakehouse_assets.environment.settings import read_settings
from tests.support.dagster_server import DagsterServer, Pool, processes, until

LIGHT, ENDLESS = ("demo", "light"), ("demo", "endless")
LIMIT = 2
# Promised by the issue: an ended run's worker, JVM and all, and a killed run's slots.
TERMINATED_SECONDS, FREED_SECONDS = 10, 15
WITH_A_DAEMON = "Starts UI and daemon; test_faults.py ends runs as they do, test_faults_spark.py a worker's JVM."


@dataclass(frozen=True)
class Workers:
    """The light workers of one test: they wait until they are released."""

    home: Path

    def hold(self, *days: str) -> None:
        """Make the workers of these days wait, of all days without any."""
        written = self.home / "hold.new"
        written.write_text(" ".join(days))
        written.rename(self.home / "hold")

    def release(self) -> None:
        (self.home / "hold").unlink(missing_ok=True)

    def stamps(self) -> list[dict]:
        """Starts and ends in order, as the workers wrote them; a killed worker has no end."""
        path = self.home / "stamps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return sorted(map(json.loads, lines), key=lambda stamp: (stamp["at"], stamp["change"]))

    def running(self) -> set[int]:
        """Pids of the workers that started and have not ended."""
        started, ended = ({s["pid"] for s in self.stamps() if s["change"] == change} for change in (1, -1))
        return {pid for pid in started - ended if start_time(pid)}

    def ended(self) -> int:
        return sum(stamp["change"] == -1 for stamp in self.stamps())

    def most_at_once(self) -> int:
        return max(accumulate(stamp["change"] for stamp in self.stamps()))


@pytest.fixture
def workers(pool_server: DagsterServer) -> Iterator[Workers]:
    """The pool empty and at its limit, before and behind the test."""
    workers = Workers(pool_server.home)
    (pool_server.home / "stamps.jsonl").unlink(missing_ok=True)
    pool_server.set_limit(LIMIT)
    workers.hold()
    yield workers
    workers.release()
    until(lambda: not pool_server.pool().claimed, state=pool_server.pool)


def _runs_of(pool: Pool) -> set[str]:
    return {run for run, _ in pool.claimed + pool.waiting}


def _pid(server: DagsterServer, run: str) -> int:
    """Of the run's own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(server.home / "dagster"))
        instance = dg.DagsterInstance.get()
    with instance:
        return int(locks_of(instance.run_storage).process(run).split()[1])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime (proc(5))


@pytest.mark.long("Watches runs of a real daemon for half a minute; unit/drive holds the limit within a process.")
@pytest.mark.server
def test_the_limit_holds_over_runs_and_chunks_and_changes_while_they_run(
    pool_server: DagsterServer, workers: Workers
) -> None:
    days = [("2024-01-01", "2024-01-03"), ("2024-01-04", "2024-01-05"), ("2024-01-06", "2024-01-06")]
    runs = [pool_server.launch(LIGHT, *span) for span in days]
    until(lambda: len(workers.running()) == LIMIT and _runs_of(pool_server.pool()) == set(runs), state=pool_server.pool)
    shown = pool_server.pool()
    assert shown.limit == LIMIT
    assert len(shown.claimed) == LIMIT
    assert all(step.startswith("demo__light[") for _, step in shown.claimed + shown.waiting)

    time.sleep(3)  # nobody may slip through on the tries of three seconds
    assert workers.most_at_once() == LIMIT
    pool_server.set_limit(LIMIT + 1)
    until(lambda: len(workers.running()) == LIMIT + 1, state=pool_server.pool)

    workers.release()
    assert {until(lambda run=run: pool_server.ended(run)) for run in runs} == {"SUCCESS"}
    assert len(workers.stamps()) == 2 * 6
    assert workers.most_at_once() == LIMIT + 1
    assert pool_server.pool().claimed == pool_server.pool().waiting == ()


@pytest.mark.long("Waits, to see that waiting costs nothing; test_claims.py holds when a slot is asked for.")
@pytest.mark.server
def test_waiting_burns_no_cpu_and_ends_at_once_when_terminated(pool_server: DagsterServer, workers: Workers) -> None:
    holding = pool_server.launch(LIGHT, "2024-01-01", "2024-01-02")
    until(lambda: len(workers.running()) == LIMIT)
    waiting = pool_server.launch(LIGHT, "2024-01-03")
    until(lambda: [run for run, _ in pool_server.pool().waiting] == [waiting], state=pool_server.pool)

    pid = _pid(pool_server, waiting)
    spent, begun = _cpu_seconds(pid), time.monotonic()
    time.sleep(5)
    share = (_cpu_seconds(pid) - spent) / (time.monotonic() - begun)
    assert share < 0.25, f"a waiting run takes {share:.0%} of a core"
    until(lambda: any(f"held by run {holding}" in message for message in pool_server.messages(waiting)))

    pool_server.terminate(waiting)
    assert until(lambda: pool_server.ended(waiting), seconds=TERMINATED_SECONDS) == "CANCELED"
    assert pool_server.pool().waiting == ()
    assert len(workers.running()) == LIMIT
    workers.release()
    assert until(lambda: pool_server.ended(holding)) == "SUCCESS"


@pytest.mark.long("Waits for Dagster's own daemon; test_faults.py kills such a run, unit/drive frees its slots.")
@pytest.mark.server
def test_slots_of_a_killed_run_come_back_and_its_re_execution_goes_on_from_its_receipts(
    pool_server: DagsterServer, workers: Workers
) -> None:
    days = ("2024-01-01", "2024-01-02", "2024-01-03")
    workers.hold(*days[1:])
    run = pool_server.launch(LIGHT, days[0], days[-1])
    until(lambda: workers.ended() == 1 and len(workers.running()) == LIMIT)
    os.kill(_pid(pool_server, run), signal.SIGKILL)
    until(lambda: not pool_server.pool().claimed, seconds=FREED_SECONDS, state=pool_server.pool)
    assert until(lambda: pool_server.ended(run), seconds=FREED_SECONDS) == "FAILURE"
    assert not workers.running()
    assert pool_server.pool().waiting == ()

    again = pool_server.re_execute(run)  # Dagster copies the dead run's tags: the new run must not be taken for it
    until(lambda: len(workers.running()) == LIMIT)
    workers.release()
    assert until(lambda: pool_server.ended(again)) == "SUCCESS"
    chunks = [stamp["chunk"] for stamp in workers.stamps() if stamp["change"] == 1]
    assert sorted(chunks) == [0, 1, 1, 2, 2], "the receipt of the first chunk was taken"
    lake = load_lake(read_settings({"LAKEHOUSE_HOME": str(pool_server.home)}))
    table = lake.load_table(".".join(LIGHT))
    assert f"{PREFIX}{run}" in table.properties
    assert f"{PREFIX}{again}" not in table.properties
    assert table.current_snapshot().summary["lakehouse.run-id"] == again


@pytest.mark.long(WITH_A_DAEMON)
@pytest.mark.server
@pytest.mark.spark
def test_terminating_a_run_ends_its_worker_and_its_jvm_and_publishes_nothing(
    pool_server: DagsterServer, workers: Workers
) -> None:
    run = pool_server.launch(ENDLESS, "2024-01-01", "2024-01-02")
    until(lambda: "the endless step runs" in pool_server.output(run), seconds=120)  # shown while it runs
    until(lambda: any("java" in command for command in _workers_of(pool_server).values()))
    assert len(_workers_of(pool_server)) >= 2  # the worker and its JVM

    pool_server.terminate(run)
    until(lambda: not _workers_of(pool_server), seconds=TERMINATED_SECONDS, state=lambda: _workers_of(pool_server))
    assert until(lambda: pool_server.ended(run), seconds=TERMINATED_SECONDS) == "CANCELED"
    assert pool_server.pool().claimed == ()
    lake = load_lake(read_settings({"LAKEHOUSE_HOME": str(pool_server.home)}))
    assert lake.load_table(".".join(ENDLESS)).current_snapshot() is None


def _workers_of(server: DagsterServer) -> dict[int, str]:
    marks = ("lakehouse_assets.worker", "SparkSubmit")
    return {pid: command for pid, command in processes(server.home).items() if any(m in command for m in marks)}


# Dagster's storage underneath: private API, so these fail when an upgrade changes what slots.py relies on.


def test_a_claim_is_refused_at_the_limit_keeps_its_place_and_is_freed(instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    first, second = Slots(instance, "run-1", "step"), Slots(instance, "run-2", "step")
    assert first.claim(0)
    assert not second.claim(0)
    told = storage.get_concurrency_info(POOL)
    assert [(slot.run_id, slot.step_key) for slot in told.claimed_slots] == [("run-1", "step[0]")]
    assert [(step.run_id, step.step_key) for step in told.pending_steps if not step.assigned_timestamp] == [
        ("run-2", "step[0]")
    ]
    first.free(0)
    assert until(lambda: second.claim(0))
    second.free_all()
    told = storage.get_concurrency_info(POOL)
    assert told.claimed_slots == []
    assert told.pending_steps == []


def test_a_limit_changed_meanwhile_counts_for_the_next_claim(instance: dg.DagsterInstance) -> None:
    slots = Slots(instance, "run-1", "step")
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert [slots.claim(chunk) for chunk in range(2)] == [True, False]
    instance.event_log_storage.set_concurrency_slots(POOL, 2)
    assert until(lambda: slots.claim(1))


def test_a_dead_runs_claims_are_freed_by_its_id(instance: dg.DagsterInstance) -> None:
    """What run monitoring and the reaper do."""
    instance.event_log_storage.set_concurrency_slots(POOL, 1)
    assert Slots(instance, "run-1", "step").claim(0)
    instance.event_log_storage.free_concurrency_slots_for_run("run-1")
    assert Slots(instance, "run-2", "step").claim(0)


def test_a_pool_nobody_set_has_the_instances_default_or_no_bound(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    assert [Slots(instance, f"run-{n}", "step").claim(0) for n in range(3)] == [True] * 3
    config = {"concurrency": {"pools": {"default_limit": 1}}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=config) as bounded:
        assert [Slots(bounded, f"run-{n}", "step").claim(0) for n in range(2)] == [True, False]
