"""AWS's prices for an hour of a worker, for estimates."""

from __future__ import annotations

import re
from dataclasses import dataclass

# List prices for Linux on x86, without Savings Plans, taxes and data transfer. Other regions use them too: estimates
# serve to compare runs and tables, and most regions differ by a quarter at most.
REGION = "us-east-1"
AS_OF = "2026-06"


@dataclass(frozen=True)
class Price:
    """USD for an hour of one vCPU, one GiB of memory, and one GiB of disk beyond ``included_disk_gib``."""

    name: str
    vcpu: float
    gib: float
    disk_gib: float
    url: str
    included_disk_gib: int = 20

    def usd(self, vcpu_hours: float, gib_hours: float, disk_gib_hours: float = 0.0) -> float:
        """Estimates USD. disk_gib_hours: only beyond ``included_disk_gib``."""
        return self.vcpu * vcpu_hours + self.gib * gib_hours + self.disk_gib * disk_gib_hours

    @property
    def source(self) -> str:
        """For Usage.source."""
        return f"{self.name}, list prices of {REGION} as of {AS_OF} ({self.url})"


# Billed by the second from the start of the image's download to the task's end, a minute at least.
FARGATE_URL = "https://aws.amazon.com/fargate/pricing/"
FARGATE_MINIMUM_SECONDS = 60
FARGATE = Price("Fargate", 0.04048, 0.004445, 0.000111, FARGATE_URL)
# Spot's price follows supply: about a third of the on-demand one. Disk at the on-demand price.
FARGATE_SPOT = Price("Fargate Spot", 0.01334053, 0.00146489, 0.000111, FARGATE_URL)
FARGATE_PRICES = {"FARGATE": FARGATE, "FARGATE_SPOT": FARGATE_SPOT}
"""By capacity provider or launch type; ARM, which the stacks don't use, costs a fifth less."""

# The price of GetJobRun's billedResourceUtilization, whose storage leaves out what is included in the price.
EMR_URL = "https://aws.amazon.com/emr/pricing/"
EMR_SERVERLESS = Price("EMR Serverless", 0.052624, 0.0057785, 0.000111, EMR_URL)
# What EMR adds to the price of the EKS cluster and its nodes, by what pods request.
EMR_EKS = Price("EMR on EKS", 0.01012, 0.00111125, 0.0, EMR_URL)


@dataclass(frozen=True)
class Machine:
    """An instance; USD for an hour under EMR."""

    vcpus: int
    gib: float
    usd: float


# (GiB of memory, USD for an hour) of one vCPU by an instance family's letter, generation 5, on demand:
# https://aws.amazon.com/ec2/pricing/on-demand/ Other letters (storage, memory) count as "r".
EC2_VCPU = {"c": (2.0, 0.0425), "m": (4.0, 0.048), "r": (8.0, 0.063)}
# The price of an instance with AWS's own ARM processors, as a share of the price on x86.
GRAVITON = 0.8
# What EMR adds: this share of the instance's price, at most that many USD: https://aws.amazon.com/emr/pricing/
EMR_SHARE, EMR_MOST = 0.25, 0.27
# By size; each larger size is a number and "xlarge".
EC2_VCPUS = {"medium": 1, "large": 2, "xlarge": 4}


def emr_machine(instance_type: str) -> Machine:
    """Describes an instance by its type, such as ``m5.2xlarge``; metal counts as 24xlarge.

    https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
    """
    family, _, size = instance_type.partition(".")
    times = re.fullmatch(r"(\d+)xlarge", size)
    vcpus = 4 * int(times[1]) if times else EC2_VCPUS.get(size, 96)
    gib, usd = EC2_VCPU.get(family[:1], EC2_VCPU["r"])
    usd *= vcpus * (GRAVITON if re.match(r"[a-z]+\d+g", family) else 1)
    return Machine(vcpus, gib * vcpus, usd + min(EMR_SHARE * usd, EMR_MOST))
