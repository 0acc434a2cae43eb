"""One result for a prompt. Upstream twin: `vllm/model_executor/layers/pooler/seqwise/`."""
