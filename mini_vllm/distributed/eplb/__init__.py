"""Expert-parallel load balancing: replicas for hot experts, spread evenly. Upstream twin: `vllm/distributed/eplb/`."""
