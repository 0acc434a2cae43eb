"""The runner for GPUs. Upstream twin: `vllm/v1/worker/gpu/`."""
