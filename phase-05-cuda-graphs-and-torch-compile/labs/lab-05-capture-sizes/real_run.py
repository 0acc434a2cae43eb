"""Asks real vLLM 0.22.1 for its capture sizes and its padding, and writes them to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`VllmConfig._set_cudagraph_sizes` and `CudagraphDispatcher._compute_bs_to_padded_graph_size` are the release's own;
only the objects that they read are stand-ins (`capture_sizes` makes them, in
mini_vllm/tests/golden/record_cudagraph.py, which asks for random limits too). Given material: nothing to edit here.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from vllm.config import CUDAGraphMode
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

from course.captures import answer
from mini_vllm.tests.golden.record_cudagraph import capture_sizes

LIMITS = [  # max_num_seqs, max_num_batched_tokens, drafts, performance mode
    (1, 2048, 0, "balanced"),
    (3, 2048, 0, "balanced"),
    (4, 2048, 0, "balanced"),
    (10, 2048, 0, "balanced"),
    (64, 2048, 0, "balanced"),
    (64, 100, 0, "balanced"),
    (127, 2048, 0, "balanced"),
    (128, 2048, 0, "balanced"),
    (200, 8192, 0, "balanced"),
    (256, 8192, 0, "balanced"),
    (256, 300, 0, "balanced"),
    (1024, 16384, 0, "balanced"),
    (1024, 500, 0, "balanced"),
    (8, 2048, 3, "balanced"),
    (256, 8192, 4, "balanced"),
    (8, 2048, 0, "interactivity"),
    (256, 8192, 0, "interactivity"),
]
LADDERS = [[1], [4, 9], [1, 2, 4, 8, 16, 24, 32, 40], [3, 6, 12], [8, 16, 20]]


def ladder(max_num_seqs, max_num_batched_tokens, drafts, performance_mode):
    """The sizes that a start with these limits would capture."""
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "drafts": drafts,
        "performance_mode": performance_mode,
        "sizes": capture_sizes(max_num_seqs, max_num_batched_tokens, drafts=drafts, performance_mode=performance_mode),
    }


def padding(sizes):
    """For every number of tokens from 1 to the largest size: the size that it is padded to."""
    stand_in = SimpleNamespace(
        compilation_config=SimpleNamespace(
            max_cudagraph_capture_size=sizes[-1], cudagraph_capture_sizes=sizes, compile_sizes=None
        ),
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
    )
    CudagraphDispatcher._compute_bs_to_padded_graph_size(stand_in)
    return {"sizes": sizes, "padded": stand_in._bs_to_padded_graph_size[1:]}


def ask():
    """All that the tests compare."""
    return {"ladders": [ladder(*limits) for limits in LIMITS], "padding": [padding(sizes) for sizes in LADDERS]}


if __name__ == "__main__":
    answer(__doc__, ask)
