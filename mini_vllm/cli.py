"""The command line's former place. An installed `mini-vllm` looks here until it is installed again."""

from mini_vllm.entrypoints.cli.main import app, main

__all__ = ["app", "main"]
