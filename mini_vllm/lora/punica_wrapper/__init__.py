"""Products with the buffers of all slots. Upstream twin: `vllm/lora/punica_wrapper/`."""
