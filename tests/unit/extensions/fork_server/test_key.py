"""What a run must share with a fork server, and what may differ."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, contextmanager
from pathlib import Path

import pytest

from lakehouse_assets.environment.machine import cores
from lakehouse_assets.extensions.fork_server.key import Key, key_of

ENV = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "one", "HOME": "/root"}
CONF = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.sql.extensions": "a.B"}
OF_CHUNK = {"DAGSTER_PIPES_CONTEXT": "x", "MINE": "x"}


def key(env: dict[str, str] = ENV, conf: dict[str, str] = CONF, java: Path = Path("/java")) -> Key:
    return key_of(env, OF_CHUNK, conf, java)


@pytest.mark.parametrize(
    ("env", "conf", "differs"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another"}, {}, ["AWS_SECRET_ACCESS_KEY"]),
        ({"TZ": "Asia/Tokyo"}, {}, ["TZ"]),
        ({"PYTHONPATH": "/elsewhere"}, {}, ["PYTHONPATH"]),
        ({"PYICEBERG_CATALOG__LAKE__URI": "x"}, {}, ["PYICEBERG_CATALOG__LAKE__URI"]),
        ({}, {"spark.driver.memory": "2g"}, ["spark.driver.memory"]),
        ({}, {"spark.sql.extensions": "c.D"}, ["spark.sql.extensions"]),
        ({}, {"spark.hadoop.fs.s3a.endpoint": "x"}, ["spark.hadoop.fs.s3a.endpoint"]),
        ({}, {"spark.sql.shuffle.partitions": "9"}, ["spark.sql.shuffle.partitions"]),
        ({"TERM": "xterm", "COLUMNS": "80", "DAGSTER_RUN_JOB_NAME": "x", "TMPDIR": "/x", "MINE": "another"}, {}, []),
        ({"LAKEHOUSE_HOME": "/elsewhere", "LAKEHOUSE_WORKER_IDLE": "PT1M"}, {}, []),
    ],
)
def test_what_a_jvm_took_over_at_its_start_must_be_the_same(
    env: dict[str, str], conf: dict[str, str], differs: list[str]
) -> None:
    assert key(ENV | env, CONF | conf).differences(key()) == differs


def test_so_must_be_java_and_the_jars(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_text("old")
    with_jar = CONF | {"spark.jars": f"/other.jar,{jar}"}
    before = key(conf=with_jar)
    assert key(conf=with_jar) == before
    jar.write_text("newer")
    assert key(conf=with_jar).differences(before) == ["the jars"]
    assert key(java=tmp_path).differences(key()) == ["Java"]


@contextmanager
def other_umask() -> Iterator[None]:
    was = os.umask(0o77)
    yield
    os.umask(was)


@contextmanager
def fewer_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def one_processor() -> Iterator[None]:
    was = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(was)})
    yield
    os.sched_setaffinity(0, was)


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        (other_umask, "the limits of the shell"),
        (fewer_files, "the limits of the shell"),
        (lambda: chdir("/"), "the working folder"),
        pytest.param(one_processor, "the processors", marks=pytest.mark.skipif(cores() == 1, reason="has one")),
    ],
)
def test_and_what_the_process_inherited(changed: Callable[[], AbstractContextManager[None]], differs: str) -> None:
    before = key()
    with changed():
        assert key().differences(before) == [differs]


def test_no_value_is_written_down() -> None:
    assert "one" not in key().parts.values()
    assert all(len(value) == 16 for value in key().parts.values())
