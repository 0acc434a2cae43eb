"""Asks real vLLM 0.22.1 for its decisions about CUDA graphs and writes them to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

The classes are the release's own (`CUDAGraphMode`, `CompilationConfig`, `CudagraphDispatcher`, `GPUModelRunner`, and
`CudaGraphManager` of the second model runner); only the objects around them are stand-ins, made
as upstream's own test makes them (upstream/tests/v1/cudagraph/test_cudagraph_dispatch.py).
Given material: nothing to edit here.
"""

import argparse
import itertools
import json
import os
from pathlib import Path
from unittest.mock import MagicMock

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})

from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

SETUPS = [  # mode, capture sizes, max_num_seqs, query length of a decode
    *((mode.name, [1, 2, 4, 8, 16], 10, 1) for mode in CUDAGraphMode),
    ("FULL_AND_PIECEWISE", [1, 2, 4, 8, 16, 24, 32], 64, 1),
    ("FULL_AND_PIECEWISE", [4, 8, 16, 24], 4, 4),
    ("FULL_DECODE_ONLY", [8, 16, 20], 16, 1),
    ("FULL", [2, 6], 3, 1),
]


def config(mode, sizes, max_num_seqs=8, query_len=1, split=True):
    """A stand-in for VllmConfig around a real CompilationConfig, as upstream's test builds it."""
    compilation = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=list(sizes),
        splitting_ops=None if split else [],
    )
    stand_in = MagicMock(spec=VllmConfig)
    stand_in.compilation_config = compilation
    stand_in.scheduler_config = SchedulerConfig.default_factory(max_num_seqs=max_num_seqs)
    stand_in.parallel_config = ParallelConfig()
    stand_in.speculative_config = MagicMock(num_speculative_tokens=query_len - 1) if query_len > 1 else None
    stand_in.lora_config = None
    compilation.set_splitting_ops_for_v1(all2all_backend=stand_in.parallel_config.all2all_backend)
    compilation.max_cudagraph_capture_size = max(sizes)
    compilation.post_init_cudagraph_sizes()
    return stand_in


def modes():
    """Every mode with the answers of its methods."""
    concrete = sorted(CUDAGraphMode.valid_runtime_modes(), key=lambda mode: mode.value)
    return [
        {
            "mode": mode.name,
            "separate_routine": mode.separate_routine(),
            "decode_mode": mode.decode_mode().name,
            "mixed_mode": mode.mixed_mode().name,
            "requires_piecewise_compilation": mode.requires_piecewise_compilation(),
            "has_full_cudagraphs": mode.has_full_cudagraphs(),
            "has_mode": {target.name: mode.has_mode(target) for target in concrete},
        }
        for mode in CUDAGraphMode
    ]


def resolved(mode, support, split, query_len):
    """What becomes of a mode when a backend of this support is chosen; an error counts as "ValueError"."""
    compilation = config(mode, [4, 8, 16], split=split).compilation_config
    if compilation.cudagraph_mode == CUDAGraphMode.NONE:
        return "NONE"
    try:
        return compilation.resolve_cudagraph_mode_and_sizes(support, "X", uniform_decode_query_len=query_len).name
    except ValueError:
        return "ValueError"


def resolve():
    """The whole table: 5 modes, 4 supports, attention split off or not, decodes of 1 or 4 tokens."""
    return [
        {
            "mode": mode.name,
            "support": support.name,
            "attention_split": split,
            "query_len": length,
            "resolved": resolved(mode.name, support, split, length),
        }
        for mode, support, split, length in itertools.product(CUDAGraphMode, AttentionCGSupport, (True, False), (1, 4))
    ]


def row(mode, key):
    """A decision as (mode, num_tokens, num_reqs, uniform)."""
    return [mode.name, key.num_tokens, key.num_reqs, key.uniform]


def dispatch(mode, sizes, max_num_seqs, query_len):
    """Every decision of one dispatcher up to three tokens past its largest size, and the order of capture."""
    setup = config(mode, sizes, max_num_seqs, query_len)
    dispatcher = CudagraphDispatcher(setup)
    dispatcher.initialize_cudagraph_keys(setup.compilation_config.cudagraph_mode, query_len)
    decisions = []
    for num_tokens in range(1, max(sizes) + 4):
        whole = num_tokens % query_len == 0 and num_tokens <= max_num_seqs * query_len
        for uniform, no_full in itertools.product((False, True) if whole else (False,), (False, True)):
            without = {CUDAGraphMode.FULL} if no_full else None
            decision = dispatcher.dispatch(num_tokens, uniform_decode=uniform, invalid_modes=without)
            decisions.append([num_tokens, uniform, no_full, *row(*decision)])
    order = [row(mode, key) for mode, keys in dispatcher.get_capture_descs() for key in keys]
    return {
        "mode": mode,
        "sizes": sizes,
        "max_num_seqs": max_num_seqs,
        "query_len": query_len,
        "capture": order,
        "decisions": decisions,
    }


def second_runner(mode, sizes, max_num_seqs, query_len):
    """The same questions to the second model runner's manager: [tokens, decodes only, mode, tokens after padding]."""
    manager = object.__new__(CudaGraphManager)  # its constructor asks for a GPU; what it decides with is set here
    setup = config(mode, sizes, max_num_seqs, query_len)
    manager.compilation_config, manager.max_num_reqs = setup.compilation_config, max_num_seqs
    manager.cudagraph_mode, manager.decode_query_len = setup.compilation_config.cudagraph_mode, query_len
    manager._graphs_captured, manager._candidates, manager._capture_descs = True, [], {}
    manager._init_candidates()
    decisions = []
    for num_tokens in range(2, max(sizes) + 4):
        whole = num_tokens % query_len == 0 and num_tokens <= max_num_seqs * query_len
        for uniform in (False, True) if whole else (False,):
            requests = num_tokens // query_len if uniform else 2
            found = manager.dispatch(requests, num_tokens, query_len if uniform else None)
            decisions.append([num_tokens, uniform, found.cg_mode.name, found.num_tokens])
    return {
        "mode": mode, "sizes": sizes, "max_num_seqs": max_num_seqs, "query_len": query_len, "decisions": decisions,
    }  # fmt: skip


def uniform():
    """`_is_uniform_decode` for a few batches: tokens of each request, query length, answer."""
    batches = [[1], [1, 1, 1], [1, 2], [4, 4], [4, 4, 1], [1, 1, 30], [2, 2], [3, 5]]
    return [
        [shares, length, bool(GPUModelRunner._is_uniform_decode(max(shares), length, sum(shares), len(shares)))]
        for shares in batches
        for length in (1, 2, 4)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="not used")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = {
        "modes": modes(),
        "resolve": resolve(),
        "dispatch": [dispatch(*setup) for setup in SETUPS],
        "second runner": [second_runner(*setup) for setup in SETUPS],
        "uniform": uniform(),
    }
    (out / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
