"""Sampling where the logits are. Upstream twin: `vllm/v1/worker/gpu/sample/`."""
