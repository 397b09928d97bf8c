"""What AWS asks for an hour of a worker: the one price table of all launchers, for estimates only.
How much a worker used is its launcher's to find out; what was really paid is the bill's."""

from __future__ import annotations

from dataclasses import dataclass

# List prices of this region, for Linux on x86, without Savings Plans, taxes and data transfer. Workers elsewhere are
# estimated at these as well: an estimate compares runs and tables, and most regions lie within a quarter of it.
REGION = "us-east-1"
AS_OF = "2026-06"


@dataclass(frozen=True)
class Price:
    """USD for an hour of one vCPU, of one GiB of memory, and of one GiB of disk beyond what is included."""

    name: str
    vcpu: float
    gib: float
    disk_gib: float
    url: str
    included_disk_gib: int = 20

    def usd(self, vcpu_hours: float, gib_hours: float, disk_gib_hours: float = 0.0) -> float:
        """The estimate. disk_gib_hours: only what is beyond ``included_disk_gib``."""
        return self.vcpu * vcpu_hours + self.gib * gib_hours + self.disk_gib * disk_gib_hours

    @property
    def source(self) -> str:
        return f"{self.name}, list prices of {REGION} as of {AS_OF} ({self.url})"


# Billed by the second from the start of the image's download to the task's end, a minute at least:
# https://aws.amazon.com/fargate/pricing/
FARGATE = Price("Fargate", 0.04048, 0.004445, 0.000111, "https://aws.amazon.com/fargate/pricing/")
# Spot's price moves with supply: about a third of the on-demand one. Disk at the on-demand price.
FARGATE_SPOT = Price("Fargate Spot", 0.01334053, 0.00146489, 0.000111, "https://aws.amazon.com/fargate/pricing/")
FARGATE_MINIMUM_SECONDS = 60

# Hours as billedResourceUtilization of GetJobRun has them, where storage is what is beyond the included already.
EMR_SERVERLESS = Price("EMR Serverless", 0.052624, 0.0057785, 0.000111, "https://aws.amazon.com/emr/pricing/")
