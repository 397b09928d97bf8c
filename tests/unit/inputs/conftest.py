"""The lake of tests that really run, with workers that need no Spark."""

from tests.unit.run.conftest import lake as lake
