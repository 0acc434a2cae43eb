"""One model on several processes. Upstream twin: `vllm/distributed/`."""
