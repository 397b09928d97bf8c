"""How object stores are best read.
No client is made here."""

from __future__ import annotations

READERS = 16
"""Threads that read small objects at once, as their round trips overlap; more would only queue for connections."""
