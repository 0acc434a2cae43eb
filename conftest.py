"""Loads the course's pytest plugin for every test run in this repository."""

pytest_plugins = ["course.pytest_plugin"]
