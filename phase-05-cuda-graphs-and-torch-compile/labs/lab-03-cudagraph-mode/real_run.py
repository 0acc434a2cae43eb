"""Asks real vLLM 0.22.1 for its decisions about CUDA graphs and writes them to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

The classes are the release's own (`CUDAGraphMode`, `CompilationConfig`, `CudagraphDispatcher`, `GPUModelRunner`, and
`CudaGraphManager` of the second model runner); only the objects around them are stand-ins, made
as upstream's own test makes them (upstream/tests/v1/cudagraph/test_cudagraph_dispatch.py). `make_config`, `steps` and
`dispatch` stand in mini_vllm/tests/golden/record_cudagraph.py, which asks the same of random settings.
Given material: nothing to edit here.
"""

import itertools
import os
import sys
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from course.captures import answer
from mini_vllm.tests.golden.record_cudagraph import dispatch, make_config, steps

SETUPS = [  # mode, capture sizes, max_num_seqs, query length of a decode
    *((mode.name, [1, 2, 4, 8, 16], 10, 1) for mode in CUDAGraphMode),
    ("FULL_AND_PIECEWISE", [1, 2, 4, 8, 16, 24, 32], 64, 1),
    ("FULL_AND_PIECEWISE", [4, 8, 16, 24], 4, 4),
    ("FULL_DECODE_ONLY", [8, 16, 20], 16, 1),
    ("FULL", [2, 6], 3, 1),
]


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
    compilation = make_config(mode, [4, 8, 16], 8, 1, split).compilation_config
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


def second_runner(mode, sizes, max_num_seqs, query_len):
    """The same questions to the second model runner's manager: [tokens, decodes only, mode, tokens after padding]."""
    manager = object.__new__(CudaGraphManager)  # its constructor asks for a GPU; what it decides with is set here
    setup = make_config(mode, sizes, max_num_seqs, query_len)
    manager.compilation_config, manager.max_num_reqs = setup.compilation_config, max_num_seqs
    manager.cudagraph_mode, manager.decode_query_len = setup.compilation_config.cudagraph_mode, query_len
    manager._graphs_captured, manager._candidates, manager._capture_descs = True, [], {}
    manager._init_candidates()
    decisions = []
    for num_tokens, uniform in steps(sizes, max_num_seqs, query_len, first=2):
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


def ask():
    """All that the tests compare."""
    return {
        "modes": modes(),
        "resolve": resolve(),
        "dispatch": [dispatch(*setup) for setup in SETUPS],
        "second runner": [second_runner(*setup) for setup in SETUPS],
        "uniform": uniform(),
    }


if __name__ == "__main__":
    answer(__doc__, ask)
