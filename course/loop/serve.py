"""`course serve`: the website on this machine, made again when a page is saved."""

import importlib.util
import socket
import subprocess
import sys

from course.labs import ROOT, LabError

HOST = "127.0.0.1"


def command(port: int) -> list[str]:
    """How mkdocs is called. Raises :class:`LabError` where it is missing or the port is taken."""
    missing = [name for name in ("mkdocs", "material") if importlib.util.find_spec(name) is None]
    if missing:
        raise LabError('the website needs mkdocs and mkdocs-material: pip install -e ".[docs]"')
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise LabError(f"port {port} is taken; choose another, for example `course serve --port {port + 1}`")
    return [sys.executable, "-m", "mkdocs", "serve", "--dev-addr", f"{HOST}:{port}", "--livereload"]


def serve(port: int) -> int:
    """Serves until Ctrl-C; returns mkdocs's exit status."""
    try:
        return subprocess.run(command(port), cwd=ROOT, check=False).returncode
    except KeyboardInterrupt:
        return 0
