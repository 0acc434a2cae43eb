"""Asks the real `CudagraphDispatcher` and `CompilationConfig` of vLLM 0.22.1 for their decisions about CUDA graphs.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    .venv-vllm/bin/python mini_vllm/tests/golden/record_cudagraph.py

No weights and no GPU are needed. The result is `cudagraph.json.xz`. The objects around the classes under test are
stand-ins, as in upstream's own test (upstream/tests/v1/cudagraph/test_cudagraph_dispatch.py). Labs 05-03 and 05-05 ask
with the same functions.
"""

from __future__ import annotations

import itertools
import os
import platform
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from mini_vllm.tests.golden.packed import write_packed

for name, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from vllm import __version__  # noqa: E402
from vllm.compilation.cuda_graph import CUDAGraphLogging, CUDAGraphStat  # noqa: E402
from vllm.config import (  # noqa: E402
    CompilationConfig,
    CompilationMode,
    CUDAGraphMode,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.v1.attention.backend import AttentionCGSupport  # noqa: E402
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher  # noqa: E402

HERE = Path(__file__).resolve().parent
NUM_DISPATCHERS = 120


def make_config(mode: str, sizes: list[int], max_num_seqs: int, query_len: int, split: bool = True) -> Any:
    """A stand-in for `VllmConfig` around a real `CompilationConfig`. split: attention is cut out of the graph."""
    compilation = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=list(sizes),
        splitting_ops=None if split else [],
    )
    config = MagicMock(spec=VllmConfig)
    config.compilation_config = compilation
    config.scheduler_config = SchedulerConfig.default_factory(max_num_seqs=max_num_seqs)
    config.parallel_config = ParallelConfig()
    config.speculative_config = MagicMock(num_speculative_tokens=query_len - 1) if query_len > 1 else None
    config.lora_config = None
    compilation.set_splitting_ops_for_v1(all2all_backend=config.parallel_config.all2all_backend)
    compilation.max_cudagraph_capture_size = max(sizes)
    compilation.post_init_cudagraph_sizes()
    return config


def row(mode: CUDAGraphMode, key: Any) -> list[Any]:
    """A decision as [mode, num_tokens, num_reqs, uniform]."""
    return [mode.name, key.num_tokens, key.num_reqs, key.uniform]


def record_dispatcher(rng: random.Random) -> dict[str, Any]:
    """One dispatcher of random settings."""
    query_len = rng.choice([1, 1, 1, 2, 4])
    sizes = sorted({query_len * rng.randint(1, 24) for _ in range(rng.randint(1, 9))})
    mode, max_num_seqs = rng.choice(list(CUDAGraphMode)).name, rng.randint(1, 24)
    return dispatch(mode, sizes, max_num_seqs, query_len)


def steps(sizes: list[int], max_num_seqs: int, query_len: int, first: int = 1) -> Iterator[tuple[int, bool]]:
    """Steps from `first` tokens to three past the largest size: (num_tokens, uniform), uniform where it can be."""
    for num_tokens in range(first, max(sizes) + 4):
        could_be_uniform = num_tokens % query_len == 0 and num_tokens <= max_num_seqs * query_len
        for uniform in [False, True][: 1 + could_be_uniform]:
            yield num_tokens, uniform


def dispatch(mode: str, sizes: list[int], max_num_seqs: int, query_len: int) -> dict[str, Any]:
    """Every decision of one dispatcher up to three tokens past its largest size, and the order of capture."""
    config = make_config(mode, sizes, max_num_seqs, query_len)
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(config.compilation_config.cudagraph_mode, query_len)
    decisions = []
    for (num_tokens, uniform), no_full in itertools.product(steps(sizes, max_num_seqs, query_len), [False, True]):
        without = {CUDAGraphMode.FULL} if no_full else None
        decision = dispatcher.dispatch(num_tokens, uniform_decode=uniform, invalid_modes=without)
        decisions.append([num_tokens, uniform, no_full, *row(*decision)])
    order = [row(runtime, key) for runtime, keys in dispatcher.get_capture_descs() for key in keys]
    args = {"mode": mode, "sizes": sizes, "max_num_seqs": max_num_seqs, "query_len": query_len}
    return {**args, "capture": order, "decisions": decisions}


def record_resolution(mode: CUDAGraphMode, support: AttentionCGSupport, split: bool, query_len: int) -> list[Any]:
    """What becomes of a mode: its name and the warnings, or the error."""
    compilation = make_config(mode.name, [4, 8, 16], 8, query_len, split).compilation_config
    warnings: list[str] = []
    import vllm.config.compilation as module

    original, module.logger.warning = module.logger.warning, lambda text, *args: warnings.append(text % args)
    try:
        asked = compilation.cudagraph_mode
        resolved = compilation.resolve_cudagraph_mode_and_sizes(support, "X", uniform_decode_query_len=query_len).name
    except ValueError as error:
        resolved = f"ValueError: {error}"
    finally:
        module.logger.warning = original
    return [asked.name, support.name, split, query_len, resolved, warnings]


def record_sizes(rng: random.Random) -> dict[str, Any]:
    """`VllmConfig._set_cudagraph_sizes` for random limits; `sizes` is the list, or the error."""
    asked = sorted({rng.randint(1, 80) for _ in range(rng.randint(1, 6))}) if rng.random() < 0.3 else None
    max_size = rng.choice([None, None, rng.randint(1, 600)]) if asked is None else None
    limits = {"max_num_seqs": rng.randint(1, 300), "max_num_batched_tokens": rng.randint(1, 3000)}
    sizes = capture_sizes(**limits, asked=asked, max_size=max_size)
    return {**limits, "asked": asked, "max_size": max_size, "sizes": sizes}


def capture_sizes(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    drafts: int = 0,
    performance_mode: str = "balanced",
    asked: list[int] | None = None,
    max_size: int | None = None,
) -> list[int]:
    """What `VllmConfig._set_cudagraph_sizes` makes of these limits: the sizes that a start would capture."""
    compilation = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        max_cudagraph_capture_size=max_size,
        cudagraph_capture_sizes=asked,
        pass_config=SimpleNamespace(enable_sp=False),
        post_init_cudagraph_sizes=lambda: None,
    )
    config = SimpleNamespace(
        compilation_config=compilation,
        model_config=SimpleNamespace(enforce_eager=False),
        speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        performance_mode=performance_mode,
    )
    VllmConfig._set_cudagraph_sizes(config)
    return compilation.cudagraph_capture_sizes


def record_table(rng: random.Random) -> dict[str, Any]:
    """Some steps, and the table that `--cudagraph-metrics` logs of them."""
    sizes = sorted(rng.sample(range(1, 600), rng.randint(0, 5)))
    mode = rng.choice(list(CUDAGraphMode))
    log = CUDAGraphLogging(mode, sizes)
    steps = []
    for number in range(rng.randint(1, 6)):
        tokens, pad = rng.randint(1, 5000), rng.randint(0, 9)
        step = [tokens, tokens + pad, pad, rng.choice(["NONE", "FULL", "PIECEWISE"])]
        for _ in range(1 + 3 * number):  # all counts differ, so that the order does not depend on ties
            log.observe(CUDAGraphStat(*step))
        steps.append([step, 1 + 3 * number])
    return {"mode": mode.name, "sizes": sizes, "steps": steps, "table": log.generate_metric_table()}


def main() -> None:
    rng = random.Random(0)
    table = itertools.product(CUDAGraphMode, AttentionCGSupport, (True, False), (1, 4))
    found = {
        "provenance": {
            "vllm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "command": ".venv-vllm/bin/python mini_vllm/tests/golden/record_cudagraph.py",
        },
        "dispatchers": [record_dispatcher(rng) for _ in range(NUM_DISPATCHERS)],
        "resolutions": [record_resolution(*case) for case in table],
        "sizes": [record_sizes(rng) for _ in range(100)],
        "tables": [record_table(rng) for _ in range(20)],
    }
    write_packed(HERE / "cudagraph.json.xz", found)
    print(sum(len(case["decisions"]) for case in found["dispatchers"]), "decisions")


if __name__ == "__main__":
    main()
