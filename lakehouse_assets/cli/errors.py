"""The messages of errors that a person can fix."""

from __future__ import annotations

from lakehouse_assets.environment.databases import refused_database
from lakehouse_assets.environment.disk import full_disk
from lakehouse_assets.environment.env_reader import SettingsError
from lakehouse_assets.environment.machine import SetupError
from lakehouse_assets.environment.settings import Settings
from lakehouse_assets.errors import LakehouseError

EXPECTED = (LakehouseError, SettingsError, SetupError, OSError)  # OSError: disks, networks, catalogs


def expected_message(error: Exception, settings: Settings | None) -> str | None:
    """Returns what a command prints for an error; None for a fault of the program, whose traceback says more.

    settings: None until the command has read them.
    """
    # The disk comes first: libraries raise errors of all kinds for it, expected ones too.
    if settings and (full := full_disk(error, settings)):
        return f"{full}, then start again. Nothing half-written is visible, and staged work is kept"
    if settings and (refused := refused_database(error, settings.home)):
        return refused
    return str(error) if isinstance(error, EXPECTED) else None
