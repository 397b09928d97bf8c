"""The command line behind the Makefile: set-up, the whole pipeline, the UI.
Nothing of the machinery: everything here can be done in the Dagster UI as well."""
