"""CUDA graphs, simulated: the modes, the dispatcher, capture and replay over persistent buffers, and their statistics.

numpy launches no kernels, so there is nothing to record; what is real here is everything around the recording: which
batch gets which graph, sizes and padding, inputs that must lie in the recorded memory, what padding may not do, the
window in which capture is allowed, and how many launches are left.

| module | holds | upstream twin |
|---|---|---|
| `mode.py` | `CUDAGraphMode`, `resolve_cudagraph_mode` | `vllm/config/compilation.py` |
| `sizes.py` | `default_capture_sizes`, `resolve_capture_sizes` | `vllm/config/vllm.py` |
| `dispatcher.py` | `BatchDescriptor`, `CudagraphDispatcher` | `vllm/v1/cudagraph_dispatcher.py` |
| `runners.py` | `LaunchCounter`, `run_eager`, `GraphRunner`, `PiecewiseGraphRunner`: the idea alone | — |
| `wrapper.py` | `CUDAGraphWrapper`: capture or replay of a model's forward pass | `vllm/compilation/cuda_graph.py` |
| `buffers.py` | `InputBuffers`: the persistent inputs and their padding | `vllm/v1/worker/gpu_model_runner.py` |
| `manager.py` | `CudaGraphManager`: what the model runner talks to | `vllm/v1/worker/gpu/cudagraph_utils.py` |
| `launches.py` | `ForwardLaunches`: what is counted | — |
| `stats.py` | `CUDAGraphStat`, `CUDAGraphStats` | `vllm/compilation/cuda_graph.py` |
"""

from mini_vllm.cudagraph.dispatcher import BatchDescriptor, CudagraphDispatcher, is_uniform_decode
from mini_vllm.cudagraph.manager import CudaGraphManager
from mini_vllm.cudagraph.mode import CUDAGraphMode, resolve_cudagraph_mode
from mini_vllm.cudagraph.runners import GraphEntry, GraphRunner, LaunchCounter, PiecewiseGraphRunner, run_eager
from mini_vllm.cudagraph.sizes import default_capture_sizes, pad_to_capture_size, resolve_capture_sizes
from mini_vllm.cudagraph.stats import CUDAGraphStat, CUDAGraphStats

__all__ = [
    "BatchDescriptor",
    "CUDAGraphMode",
    "CUDAGraphStat",
    "CUDAGraphStats",
    "CudaGraphManager",
    "CudagraphDispatcher",
    "GraphEntry",
    "GraphRunner",
    "LaunchCounter",
    "PiecewiseGraphRunner",
    "default_capture_sizes",
    "is_uniform_decode",
    "pad_to_capture_size",
    "resolve_capture_sizes",
    "resolve_cudagraph_mode",
    "run_eager",
]
