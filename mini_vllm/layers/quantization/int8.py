"""int8, a scale for each output row: what a float checkpoint becomes while it loads, and what a checkpoint brings.

Upstream twin: `vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.layers.quantization.eight_bit import EightBitMethod
from mini_vllm.layers.quantization.online import OnlineConfig
from mini_vllm.layers.quantization.primitives import LOAD_ROWS, quantize_per_channel
from mini_vllm.parameter import TensorSource


class Int8Config(OnlineConfig):
    """int8, a scale for each output row."""

    name = "int8"

    def make_method(self) -> QuantizeMethodBase:
        """Weights only."""
        return Int8LinearMethod()


class Int8LinearMethod(EightBitMethod):
    """int8, -127 to 127, a scale for each output row.

    Upstream:
    upstream/vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py:26 —
    `CompressedTensorsW8A8Int8`; from floats upstream makes int8 of the experts of a mixture only
    (`quantization="int8_per_channel_weight_only"`).
    """

    code_type, stored = np.int8, "I8"

    def _quantize_rows(self, layer: LinearWeights, rows: slice, source: TensorSource) -> None:
        for first in range(0, rows.stop - rows.start, LOAD_ROWS):
            last = min(first + LOAD_ROWS, rows.stop - rows.start)
            codes, scales = quantize_per_channel(source.read("weight", first, last))
            layer.weight[rows.start + first : rows.start + last] = codes
            layer.weight_scale[rows.start + first : rows.start + last, 0] = scales
