"""One GPU: weights, cache, runner, graphs. Upstream twin: `vllm/v1/worker/gpu_worker.py`."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mini_vllm.compilation.cuda_fused import CudaDecoder
from mini_vllm.compilation.cuda_ops import DeviceMetadata
from mini_vllm.compilation.registry import compiled_form_class
from mini_vllm.kv_cache_interface import AttentionSpec, KVCacheSpec
from mini_vllm.platforms.cuda import CudaPlatform
from mini_vllm.utils.mem_utils import format_gib
from mini_vllm.worker.gpu.model_runner import GPUModelRunner
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.worker import Worker


class GPUWorker(Worker):
    """Upstream: upstream/vllm/v1/worker/gpu_worker.py:109 — `Worker`."""

    program: CudaDecoder

    def init_device(self) -> None:
        """The device and its numbers. Products may not be rounded to TF32 behind anybody's back.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:236 — `Worker.init_device`.
        """
        platform = self.config.platform
        assert isinstance(platform, CudaPlatform)
        self.device = platform.device_type
        self.device_dtype: torch.dtype = getattr(torch, platform.device_dtype(self.config.model_config.dtype))
        torch.backends.cuda.matmul.allow_tf32 = False

    def load_model(self) -> None:
        """Read the weights, and copy them to the device."""
        super().load_model()
        if not self.model.num_layers:
            raise ValueError(f"device={self.config.device!r} needs a checkpoint, got {type(self.model).__name__}")
        max_len = self.config.resolve_max_model_len(*self.resolved_model.lengths)
        form = compiled_form_class(self.model, self.config.device) or CudaDecoder
        self.program = form(self.model, self.device, self.device_dtype, max_len)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """As a CPU's, in the device's numbers (float16 has bfloat16's size, and numpy knows it)."""
        name = "float32" if self.device_dtype == torch.float32 else "float16"
        specs: dict[str, KVCacheSpec] = {}
        for layer, spec in super().get_kv_cache_spec().items():
            if not isinstance(spec, AttentionSpec):
                raise ValueError(f"device={self.config.device!r} serves attention alone, got a {type(spec).__name__}")
            specs[layer] = replace(spec, dtype=name)
        return specs

    @torch.inference_mode()
    def determine_available_memory(self, share: float) -> int:
        """Bytes that a step of the largest size leaves of `share` of the device's memory.

        Raises:
            ValueError: nothing is left.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:358 — `Worker.determine_available_memory`.
        """
        free, total = torch.cuda.mem_get_info()
        held = total - free - torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        self._largest_step()
        peak = torch.cuda.max_memory_allocated() + held
        torch.cuda.empty_cache()
        left = int(total * share) - peak
        if left <= 0:
            raise ValueError(
                f"gpu_memory_utilization={share} of {format_gib(total)} is {format_gib(int(total * share))}, but a "
                f"step takes {format_gib(peak)} before any KV cache: allow more, or lower max_num_batched_tokens"
            )
        return left

    def _largest_step(self) -> None:
        """A prompt of `max_num_batched_tokens` tokens through all layers, into no cache, and the logits of all rows."""
        tokens, seats, model = self.config.max_num_batched_tokens, self.config.max_num_seqs or 1, self.model
        put: Any = lambda array: torch.as_tensor(np.asarray(array, np.int32), device=self.device)  # noqa: E731
        zeros = put(np.zeros(tokens))
        blocks = put(np.zeros((1, -(-tokens // self.config.block_size))))
        metadata = DeviceMetadata(put([0, tokens]), put([tokens]), blocks, zeros - 1, tokens)
        shape = (model.num_layers, 2, 1, self.config.block_size, model.num_kv_heads, model.head_dim)
        cache = torch.zeros(shape, dtype=self.device_dtype, device=self.device)
        hidden = self.program.forward(zeros, zeros, cache, metadata)
        logits = self.program.compute_logits(hidden[:1].expand(seats, -1)).float()
        logits.sort(dim=-1)
        torch.cuda.synchronize()

    def _make_model_runner(self, sampler: Any, **settings: Any) -> ModelRunner:
        return GPUModelRunner(self.model, sampler, program=self.program, **settings)

    def compile_or_warm_up_model(self) -> None:
        """Record the graphs, unless `enforce_eager`.

        Upstream: upstream/vllm/v1/worker/gpu_worker.py:572 — `Worker.compile_or_warm_up_model`.
        """
        if self.config.platform.support_static_graph_mode() and not self.config.enforce_eager:
            assert isinstance(self.model_runner, GPUModelRunner)
            self.model_runner.capture_model(self.config.cudagraph_capture_sizes)

    def shutdown(self) -> None:
        """Give the device's memory back: weights, cache and graphs."""
        for name in ("model_runner", "program"):
            vars(self).pop(name, None)
        gc.collect()
        self.config.platform.empty_cache()
