"""The command line that the Makefile calls: set-up, running a domain, serving the UI.

All that it does with assets can be done in the Dagster UI as well.
"""
