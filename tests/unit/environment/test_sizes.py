"""Sizes of workers that a service doesn't offer are refused, with what it offers."""

from __future__ import annotations

import pytest

from lakehouse_assets.environment.sizes import OPTIMIZED, Size, emr_problem, fargate_problem, serverless_problem


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (Size(), None),
        (Size(16, 120, 200), None),
        (Size(0.25, 0.5), None),
        (Size(16, 121), "121 GiB with 16 vCPUs; Fargate offers 32 to 120 by 8"),
        (Size(16, 36), "36 GiB with 16 vCPUs"),
        (Size(4), "set together"),
        (Size(0.25, 2), None),
        (Size(0.25, 1.5), "1.5 GiB with 0.25 vCPUs; Fargate offers 0.5, 1, 2"),
        (Size(2, 4.5), "4.5 GiB with 2 vCPUs; Fargate offers 4 to 16 by 1"),
        (Size(3, 500, 500), "500 GiB of disk; Fargate offers 21 to 200; and 3 vCPUs; Fargate offers"),
        (Size(disk_gib=20), "20 GiB of disk; Fargate offers 21 to 200"),
    ],
)
def test_fargate_s_sizes(size: Size, says: str | None) -> None:
    problem = fargate_problem(size)
    assert problem is None if says is None else says in (problem or "")


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (Size(), None),
        (Size(0.3, 1000), "0.3 vCPUs; on EMR, drivers and executors have whole cores"),
        (Size(48, 1000), None),
        (Size(2.0, 2.5), None),
        (Size(disk_gib=50), "50 GiB of disk; on EMR, the cluster determines the disks"),
    ],
)
def test_emr_s_sizes(size: Size, says: str | None) -> None:
    problem = emr_problem(size)
    assert problem is None if says is None else says in (problem or "")
    assert says is None or says.replace("on EMR", "on EMR on EKS") in (emr_problem(size, "EMR on EKS") or "")


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (Size(), None),
        (Size(1, 2, 20), None),
        (Size(16, 120, 200), None),
        (Size(vcpus=8), None),
        (Size(memory_gib=120), None),
        (Size(0.5, 2), "0.5 vCPUs; EMR Serverless offers 1, 2, 4, 8, 16"),
        (Size(1, 9), "9 GiB with 1 vCPUs; EMR Serverless offers 2 to 8 by 1"),
        (Size(8, 17), "17 GiB with 8 vCPUs; EMR Serverless offers 16 to 60 by 4"),
        (Size(16, 128), "128 GiB with 16 vCPUs; EMR Serverless offers 32 to 120 by 8"),
        (Size(memory_gib=61), "61 GiB; EMR Serverless offers 2 to 8 by 1 with 1 vCPUs, 4 to 16 by 1 with 2 vCPUs"),
        (Size(3, 8, 19), "19 GiB of disk; EMR Serverless offers 20 to 200; and 3 vCPUs"),
        (Size(disk_gib=201), "20 to 200, or to 2000 if spark_conf sets spark.emr-serverless.driver.disk.type and"),
    ],
)
def test_emr_serverless_s_sizes(size: Size, says: str | None) -> None:
    problem = serverless_problem(size, {})
    assert problem is None if says is None else says in (problem or "")


def test_emr_serverless_has_larger_disks_of_the_other_type() -> None:
    optimized = {f"spark.emr-serverless.{who}.disk.type": OPTIMIZED.upper() for who in ("driver", "executor")}
    assert serverless_problem(Size(disk_gib=2000), optimized) is None
    assert serverless_problem(Size(disk_gib=2001), optimized) == "2001 GiB of disk; EMR Serverless offers 20 to 2000"
    one = dict([optimized.popitem()])
    assert "20 to 200, or to 2000 if" in (serverless_problem(Size(disk_gib=500), one) or "")
