"""Loads the course's pytest plugin for every test run in this repository."""

import signal

pytest_plugins = ["course.pytest_plugin"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell without job control starts what it puts in the background; children inherit it, and tests send SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
