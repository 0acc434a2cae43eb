"""These tests need the extra `serve`; without it they are not collected."""

from importlib.util import find_spec

if any(find_spec(name) is None for name in ("httpx", "fastapi", "uvicorn")):
    collect_ignore_glob = ["test_*.py"]
