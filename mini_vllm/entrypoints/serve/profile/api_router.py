"""`/start_profile` and `/stop_profile`, with `--profiler-config`. Upstream twin:
`vllm/entrypoints/serve/profile/api_router.py`, where torch's or CUDA's profiler runs; here it is our own.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from mini_vllm.entrypoints.openai.utils import respond
from mini_vllm.entrypoints.utils import create_error_response
from mini_vllm.logger import init_logger
from mini_vllm.profiler.wrapper import EngineProfiler

logger = init_logger(__name__)
router = APIRouter()
_KEYS = ("profiler", "torch_profiler_dir")


def validate_profiler_config(text: str) -> dict[str, Any]:
    """The flag's value. Raises ValueError: what it has to be.

    Upstream: upstream/vllm/config/profiler.py:34 — `ProfilerConfig`.
    """
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    known = isinstance(config, dict) and set(config) <= set(_KEYS)
    if not known or config.get("profiler") not in (None, "torch") or not isinstance(config.get(_KEYS[1], ""), str):
        wanted = '{"profiler": "torch", "torch_profiler_dir": "FOLDER"}'
        raise ValueError(f"--profiler-config must be {wanted} (the trace is ours, for Perfetto), got {text}")
    if bool(config.get("profiler")) != bool(config.get("torch_profiler_dir")):
        raise ValueError(f"--profiler-config: profiler and torch_profiler_dir come together, got {text}")
    return config


class AsyncProfiler(EngineProfiler):
    """A profile of an `AsyncLLM`; each one is a file in `folder`."""

    def __init__(self, engine: Any, folder: str) -> None:
        super().__init__(engine)
        self.folder = Path(folder)

    async def start_async(self) -> None:
        """Wrap. Raises ValueError where a profile runs already, OSError where nothing can be written."""
        if self.recorder is not None:
            raise ValueError("a profile runs already: POST /stop_profile ends it")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.wrap_front_end()
        await self.engine.core_client.call_utility_async("profile", True)

    async def stop_async(self) -> Path:
        """Write the trace. Raises ValueError where no profile runs."""
        if self.recorder is None:
            raise ValueError("no profile runs: POST /start_profile starts one")
        events, self.recorder = self.recorder.stop(), None
        events = events + await self.engine.core_client.call_utility_async("profile", False)
        path = self.folder / f"trace-{time.time_ns()}.json"
        path.write_text(json.dumps(self.trace(events)) + "\n", encoding="utf-8")
        return path


def _profiler(raw_request: Request) -> AsyncProfiler:
    state = raw_request.app.state
    if getattr(state, "profiler", None) is None:
        folder = state.args.profiler_config["torch_profiler_dir"]
        state.profiler = AsyncProfiler(state.engine_client, folder)
    found: AsyncProfiler = state.profiler
    return found


@router.post("/start_profile")
async def start_profile(raw_request: Request) -> Response:
    """Begin; 400 where a profile runs already."""
    try:
        await _profiler(raw_request).start_async()
    except ValueError as error:
        return respond(create_error_response(error))
    logger.info("Profiler started.")
    return Response(status_code=200)


@router.post("/stop_profile")
async def stop_profile(raw_request: Request) -> Response:
    """End, and write the trace; 400 where no profile runs."""
    try:
        path = await _profiler(raw_request).stop_async()
    except ValueError as error:
        return respond(create_error_response(error))
    logger.info("Profiler stopped: %s", path)
    return Response(status_code=200)


def attach_router(app: FastAPI) -> None:
    """Add the routes where a profiler is wanted."""
    if (app.state.args.profiler_config or {}).get("profiler"):
        logger.warning("everybody who reaches this server can profile it")
        app.include_router(router)
