"""GPU kernels in Triton, one idea a file. Nothing is imported here: `import mini_vllm` stays free of torch.

- `softmax`: softmax over rows; each number is read once and written once.
- `paged_decode`: one query per request, keys and values behind a block table, split-KV. Upstream:
  `kernel_unified_attention` in `vllm/v1/attention/ops/triton_unified_attention.py`, 3D.
- `prefill`: many queries per request over the same cache, causal. Upstream: the same kernel, 2D.
- `gemm`: a tiled matrix product. Upstream: cuBLAS and CUTLASS.
- `grouped_gemm`: one matrix product per expert, all in one launch. Upstream: `fused_moe_kernel` in
  `vllm/model_executor/layers/fused_moe/fused_moe.py`.
- `int4_matmul`: a few rows times 4-bit weights with a scale per group. Upstream: `fused_moe_kernel_gptq_awq` beside it;
  Marlin in CUDA.

Every file runs on a GPU, and in Triton's interpreter without one (`TRITON_INTERPRET=1`, set before triton is imported;
there in float16 and float32 only). Extra: `pip install -e ".[triton]"`.
"""
