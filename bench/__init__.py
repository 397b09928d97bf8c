"""Measurements, side by side: `python -m bench`, one module for each. Nothing here is imported by the code location."""
