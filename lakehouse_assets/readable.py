"""Refuses a file that PyIceberg would end on, which it reads when it is imported: to be imported before it.
What else the configuration says is judged when the definitions are built."""

from __future__ import annotations

from resources.catalog import configuration
from resources.catalog_problems import catalog_problems
from resources.settings import read_settings

_, unreadable = configuration()
if unreadable:
    read_settings(check=catalog_problems)
