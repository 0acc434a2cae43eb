"""Projections with buffers for adapters. Upstream twin: `vllm/lora/layers/`."""
