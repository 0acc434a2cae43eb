"""Wait until a server answers. Upstream twin: `vllm/benchmarks/lib/ready_checker.py`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mini_vllm.benchmarks.lib.endpoint_request_func import RequestFunc, RequestFuncInput, RequestFuncOutput


async def wait_for_endpoint(
    request_func: RequestFunc,
    test_input: RequestFuncInput,
    session: Any,
    timeout_seconds: float = 600,
    retry_interval: float = 5,
) -> RequestFuncOutput:
    """Send one request again and again until it is answered; the last output, failed or not, after `timeout_seconds`.

    A server that says that the request itself is wrong (status 400 to 499, but not 404, 408, 425 and 429) is not asked
    twice; upstream asks until the time is over: upstream/vllm/benchmarks/lib/ready_checker.py:18 — `wait_for_endpoint`.
    """
    deadline = time.perf_counter() + timeout_seconds
    while True:
        output = await request_func(request_func_input=test_input, session=session)
        remaining = deadline - time.perf_counter()
        if output.success or remaining <= 0 or _is_refusal(output.error):
            return output
        await asyncio.sleep(min(retry_interval, remaining))


def _is_refusal(error: str) -> bool:
    status = error[:3]
    return status.isdigit() and 400 <= int(status) < 500 and int(status) not in (404, 408, 425, 429)
