"""A release that is killed before a step: ``python -m tests.support.killed_release <step> <Dagster's folder>``.
The lake is that of the environment; the tests of it are in integration/test_releases.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from lakehouse_assets.environment.settings import read_settings
from tests.support.instances import light_instance
from tests.support.releases import ReleasedLake, before


def main(step: str, folder: str) -> None:
    before(pytest.MonkeyPatch(), step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with light_instance(Path(folder)) as instance:
        ReleasedLake(read_settings(), instance).publish()


if __name__ == "__main__":
    main(*sys.argv[1:])
