"""What becomes of hidden states when no token is wanted. Upstream twin: `vllm/model_executor/layers/pooler/`."""
