"""Asks real vLLM 0.22.1 for its capture sizes and its padding, and writes them to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`VllmConfig._set_cudagraph_sizes` and `CudagraphDispatcher._compute_bs_to_padded_graph_size` are the release's own;
only the objects that they read are stand-ins. Given material: nothing to edit here.
"""

import argparse
import json
import os
from pathlib import Path
from types import SimpleNamespace

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})

from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

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
    sizes = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        max_cudagraph_capture_size=None,
        cudagraph_capture_sizes=None,
        pass_config=SimpleNamespace(enable_sp=False),
        post_init_cudagraph_sizes=lambda: None,
    )
    stand_in = SimpleNamespace(
        compilation_config=sizes,
        model_config=SimpleNamespace(enforce_eager=False),
        speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        performance_mode=performance_mode,
    )
    VllmConfig._set_cudagraph_sizes(stand_in)
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "drafts": drafts,
        "performance_mode": performance_mode,
        "sizes": sizes.cudagraph_capture_sizes,
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="not used")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = {"ladders": [ladder(*limits) for limits in LIMITS], "padding": [padding(sizes) for sizes in LADDERS]}
    (out / "result.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
