"""Refuses a file that PyIceberg would end on, which it reads when it is imported: to be imported before it.
What else the configuration says is judged when the definitions are built."""

from __future__ import annotations

from resources.catalog import catalog_problems, unreadable_file
from resources.settings import read_settings

if unreadable_file():
    read_settings(check=catalog_problems)
