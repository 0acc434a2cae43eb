"""`mini-vllm bench serve`: the client of any OpenAI-compatible server, ours or another, timed token by token.

    get_samples -> arrivals -> one request each -> calculate_metrics -> result file

Upstream twin: `vllm/benchmarks/serve.py`: the same options, the same arrivals for a seed, the same fields in the result
file (`client_cpu_seconds`, what the client itself took, is ours). Needs httpx (extra `serve`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from mini_vllm.benchmarks.datasets.datasets import SampleRequest, get_samples
from mini_vllm.benchmarks.lib.endpoint_request_func import (
    ASYNC_REQUEST_FUNCS,
    POOLING_BACKENDS,
    RequestFunc,
    RequestFuncInput,
    RequestFuncOutput,
)
from mini_vllm.benchmarks.lib.ready_checker import wait_for_endpoint
from mini_vllm.benchmarks.lib.utils import clear_inf, key_values, progress_bar, save_to_pytorch_benchmark_format
from mini_vllm.benchmarks.serve_args import SAMPLING, add_cli_args, check_args, compute_result_filename
from mini_vllm.benchmarks.serve_metrics import (
    DETAILS,
    calculate_metrics,
    parse_goodput,
    report,
    result_fields,
    time_fields,
)
from mini_vllm.benchmarks.spec_decode_metrics import fetch_spec_decode_metrics, spec_decode_fields

__all__ = ["add_cli_args", "arrivals", "benchmark", "get_request", "main", "make_session"]


def arrivals(
    count: int,
    request_rate: float,
    burstiness: float = 1.0,
    seed: int = 0,
    ramp: tuple[str, float, float] | None = None,
) -> list[float]:
    """When each request leaves, in seconds after the start.

    Gaps follow a gamma distribution with the mean 1/rate: exponential at burstiness 1, so that the arrivals are a
    Poisson process. They are scaled so that the last request leaves at count/rate. ramp: (strategy, first rate, last
    rate) in place of one rate; then nothing is scaled. Upstream draws from numpy's process-wide source.

    Upstream: upstream/vllm/benchmarks/serve.py:247 — `get_request`.
    """
    chance = np.random.RandomState(seed)
    gaps = []
    for index in range(count):
        rate = _rate_at(index, count, request_rate, ramp)
        if rate == float("inf"):
            gaps.append(0.0)
        elif burstiness == float("inf"):
            gaps.append(1.0 / rate)
        else:
            gaps.append(chance.gamma(shape=burstiness, scale=1.0 / (rate * burstiness)))
    times = np.cumsum(gaps)
    if ramp is None and count and times[-1]:
        times = times * (count / request_rate / times[-1])
    return times.tolist()


def _rate_at(index: int, count: int, request_rate: float, ramp: tuple[str, float, float] | None) -> float:
    if ramp is None:
        return request_rate
    strategy, start, end = ramp
    progress = index / max(count - 1, 1)
    return start + (end - start) * progress if strategy == "linear" else start * (end / start) ** progress


async def get_request(requests: Sequence[SampleRequest], leave: Sequence[float]) -> AsyncIterator[SampleRequest]:
    """Each request when its time has come; late ones at once."""
    start = time.perf_counter()
    for request, at in zip(requests, leave, strict=True):
        wait = start + at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        yield request


def make_session(max_concurrency: int | None = None, insecure: bool = False) -> Any:
    """An HTTP client that keeps connections. Raises ImportError naming the extra."""
    try:
        import httpx
    except ImportError:
        raise ImportError("bench serve needs httpx: pip install 'mini-vllm-course[serve]'") from None
    limits = httpx.Limits(max_connections=max_concurrency, max_keepalive_connections=None, keepalive_expiry=60)
    return httpx.AsyncClient(limits=limits, timeout=6 * 3600, verify=not insecure)


async def benchmark(
    request_func: RequestFunc,
    inputs: Sequence[RequestFuncInput],
    leave: Sequence[float],
    session: Any,
    max_concurrency: int | None = None,
    progress: Callable[[], Any] | None = None,
) -> tuple[list[RequestFuncOutput], float, float]:
    """Send all requests at their times: (outputs in their order, seconds in all, seconds of the client's processor).

    Upstream: upstream/vllm/benchmarks/serve.py:608 — `benchmark`.
    """
    gate: Any = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()

    async def limited(given: RequestFuncInput) -> RequestFuncOutput:
        async with gate:
            return await request_func(given, session, progress)

    start, cpu = time.perf_counter(), time.process_time()
    tasks = [asyncio.create_task(limited(given)) async for given in get_request(inputs, leave)]  # type: ignore[arg-type]
    outputs = await asyncio.gather(*tasks)
    return list(outputs), time.perf_counter() - start, time.process_time() - cpu


async def get_first_model_from_server(base_url: str, session: Any, headers: dict[str, str]) -> tuple[str, str]:
    """(name, where it comes from) of the first model that `/v1/models` lists. Raises ConnectionError, ValueError.

    Upstream: upstream/vllm/benchmarks/serve.py:65 — `get_first_model_from_server`.
    """
    url = f"{base_url}/v1/models"
    try:
        response = await session.get(url, headers=headers)
        response.raise_for_status()
        models = response.json().get("data", [])
    except Exception as error:
        raise ConnectionError(f"Failed to fetch models from server at {url}: {type(error).__name__}: {error}") from None
    if not models:
        raise ValueError(f"No models found on the server at {base_url}.")
    return models[0]["id"], models[0].get("root") or models[0]["id"]


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, write; the result as it would stand in the file. Raises ValueError, OSError."""
    check_args(args)
    return asyncio.run(main_async(args))


async def main_async(args: argparse.Namespace) -> dict[str, Any]:
    """Upstream: upstream/vllm/benchmarks/serve.py:1637 — `main_async`."""
    goodput = parse_goodput(args.goodput)
    base_url = (args.base_url or f"http://{args.host}:{args.port}").rstrip("/")
    headers = key_values(args.header, "--header")
    metadata = key_values(args.metadata, "--metadata")
    async with make_session(args.max_concurrency, args.insecure) as session:
        name, model_id = args.served_model_name, args.model
        if model_id is None:
            name, model_id = await get_first_model_from_server(base_url, session, headers)
        tokenizer = None if args.skip_tokenizer_init else find_tokenizer(args.tokenizer or model_id)
        inputs = _inputs(args, get_samples(args, tokenizer), base_url + args.endpoint, model_id, name, headers)
        result = await _measure(args, inputs, session, base_url, tokenizer, goodput)
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    whole = _settings(args, model_id, now) | metadata | _traffic(args) | result
    path = compute_result_filename(args, model_id, now)
    if not args.save_detailed:
        whole = {key: value for key, value in whole.items() if key not in DETAILS}
    if path is not None:
        new = not (args.append_result and path.is_file() and path.stat().st_size)
        with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
            file.write(("" if new else "\n") + json.dumps(clear_inf(whole)))
        numbers = {key: [value] for key, value in whole.items() if key.endswith("_ms")}
        rest = {key: value for key, value in whole.items() if key not in numbers and key not in DETAILS}
        save_to_pytorch_benchmark_format(args, numbers, rest, path)
    return whole


def find_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or a hub name; "toy": bytes. Raises ValueError, FileNotFoundError, ImportError."""
    from mini_vllm.model_loader.hub import get_checkpoint_folder
    from mini_vllm.tokenizers.byte import ByteTokenizer
    from mini_vllm.tokenizers.registry import load_tokenizer

    return ByteTokenizer() if name == "toy" else load_tokenizer(get_checkpoint_folder(name, what="tokenizer"))


def _inputs(
    args: argparse.Namespace,
    requests: Sequence[SampleRequest],
    api_url: str,
    model_id: str,
    model_name: str | None,
    headers: dict[str, str],
) -> list[RequestFuncInput]:
    """Everything that will be sent, made before the clock runs."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    given |= args.extra_body or {}
    chance, loras = random.Random(args.seed), args.lora_modules
    inputs = []
    for i, request in enumerate(requests):
        lora = None
        if loras:
            lora = loras[i % len(loras)] if args.lora_assignment == "round-robin" else chance.choice(loras)
        inputs.append(
            RequestFuncInput(
                prompt=request.prompt,
                api_url=api_url,
                prompt_len=request.prompt_len,
                output_len=request.expected_output_len,
                model=lora or model_id,
                model_name=lora or model_name,
                logprobs=args.logprobs,
                extra_headers=headers,
                extra_body={**given, **(request.extra_body or {})},
                ignore_eos=args.ignore_eos,
                request_id=request.request_id,
            )
        )
    return inputs


async def _measure(
    args: argparse.Namespace,
    inputs: list[RequestFuncInput],
    session: Any,
    base_url: str,
    tokenizer: Any,
    goodput: dict[str, float],
) -> dict[str, Any]:
    """Ready check, warm-up, the run itself, and its numbers."""
    request_func = ASYNC_REQUEST_FUNCS[args.backend]
    first = replace(inputs[0], request_id=None)
    if args.ready_check_timeout_sec > 0:
        ready = await wait_for_endpoint(request_func, first, session, args.ready_check_timeout_sec)
        if not ready.success:
            raise ValueError(f"Initial test run failed. Error: {ready.error.strip().splitlines()[-1]}")
    if args.num_warmups:
        warm = [first] * args.num_warmups
        await benchmark(request_func, warm, [0.0] * len(warm), session, args.max_concurrency)
    if args.profile:
        await session.post(f"{base_url}/start_profile")
    before = await fetch_spec_decode_metrics(base_url, session)
    ramp = (args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps) if args.ramp_up_strategy else None
    leave = arrivals(len(inputs), args.request_rate, args.burstiness, args.seed, ramp)
    with progress_bar("requests", len(inputs), disable=args.disable_tqdm) as advance:
        outputs, seconds, cpu = await benchmark(request_func, inputs, leave, session, args.max_concurrency, advance)
    after = await fetch_spec_decode_metrics(base_url, session)
    if args.profile:
        await session.post(f"{base_url}/stop_profile")
    count = None if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    metrics, lens = calculate_metrics(outputs, seconds, args.selected_percentiles, goodput, count)
    selected = (args.percentile_metrics or ("e2el" if args.backend in POOLING_BACKENDS else "ttft,tpot,itl")).split(",")
    result = result_fields(metrics, outputs, lens, seconds, bool(goodput)) | {"client_cpu_seconds": cpu}
    result |= spec_decode_fields(before, after) | time_fields(metrics, selected)
    rate = None if args.request_rate == float("inf") else float(args.request_rate)
    shown = {"Maximum request concurrency:": args.max_concurrency, "Request rate configured (RPS):": rate}
    print(report(metrics, result, shown, selected))
    for number, output in enumerate([output for output in outputs if output.error][:10]):
        print(f"Error {number}: {output.error.strip().splitlines()[-1]}")
    return result


def _settings(args: argparse.Namespace, model_id: str, date: str) -> dict[str, Any]:
    return {
        "date": date, "endpoint_type": args.backend, "backend": args.backend, "label": args.label,
        "model_id": model_id, "tokenizer_id": None if args.skip_tokenizer_init else args.tokenizer or model_id,
        "num_prompts": args.num_prompts,
    }  # fmt: skip


def _traffic(args: argparse.Namespace) -> dict[str, Any]:
    rate = "inf" if args.request_rate == float("inf") else args.request_rate
    found = {"request_rate": rate, "burstiness": args.burstiness, "max_concurrency": args.max_concurrency}
    if args.ramp_up_strategy is not None:
        found |= {name: getattr(args, name) for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")}
    return found
