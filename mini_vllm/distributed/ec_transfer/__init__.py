"""Encoder outputs from another engine, or for one. Upstream twin: `vllm/distributed/ec_transfer`."""
