"""A result for each token of a prompt. Upstream twin: `vllm/model_executor/layers/pooler/tokwise/`."""
