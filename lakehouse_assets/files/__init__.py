"""Reads the files that others deliver, strictly: CSV, JSON and Parquet of the drop zone, and what such a file holds.

No catalog and no table is known here.
"""
