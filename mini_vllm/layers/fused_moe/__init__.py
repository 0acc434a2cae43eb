"""Mixture of experts: who gets a token, tokens sorted by expert, the experts' products, experts on other ranks.

`routing` (who gets a token) -> `moe_align_block_size` (tokens sorted by expert) -> `fused_moe` (the products); `layer`
(the experts of one layer, as an object), `expert_parallel` (experts on ranks), `expert_load` (how even it is). Making
it even: `mini_vllm/distributed/eplb/`. Upstream twin: `vllm/model_executor/layers/fused_moe/`.
"""
