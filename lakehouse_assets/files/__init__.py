"""Strict readers of delivered files: CSV, JSON and Parquet."""
