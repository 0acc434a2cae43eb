"""CUDA graphs, simulated: capture and replay over persistent buffers, and statistics.

numpy launches no kernels, so there is nothing to record; what is real here is everything around the recording: which
batch gets which graph, sizes and padding, inputs that must lie in the recorded memory, what padding may not do, the
window in which capture is allowed, and how many launches are left.

| Module | Holds | Upstream twin |
|---|---|---|
| `config/compilation.py` | `CUDAGraphMode`, `default_capture_sizes` | the same, and `config/vllm.py` |
| `compilation/cudagraph_dispatcher.py` | `BatchDescriptor`, `CudagraphDispatcher` | `vllm/v1/cudagraph_dispatcher.py` |
| `runners.py` | `LaunchCounter`, `GraphRunner`, `PiecewiseGraphRunner`: the idea alone | `breakable_cudagraph.py` |
| `compilation/cuda_graph.py` | `CUDAGraphWrapper`: capture, or replay | `vllm/compilation/cuda_graph.py` |
| `buffers.py` | `InputBuffers`: the persistent inputs and their padding | `vllm/v1/worker/gpu_model_runner.py` |
| `manager.py` | `CudaGraphManager`: what the model runner talks to | `vllm/v1/worker/gpu/cudagraph_utils.py` |
| `launches.py` | `ForwardLaunches`: what is counted | — |
| `stats.py` | `CUDAGraphStat`, `CUDAGraphStats` | `vllm/compilation/cuda_graph.py` |
"""
