"""The command line: set-up, running a domain, serving the UI."""
