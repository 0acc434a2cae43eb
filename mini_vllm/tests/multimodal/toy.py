"""A model with a picture in its prompt, small enough to read, and with keys and values that are really kept: a wrong
row of an embedding, a wrong position, a block of somebody else's picture, each changes its tokens."""

from types import SimpleNamespace

import numpy as np

from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.models.interfaces import SupportsMRoPE, SupportsMultiModal
from mini_vllm.multimodal.processing import (
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    PromptReplacement,
    PromptUpdateDetails,
)

IMAGE, BREAK, VOCAB, WIDTH = 50, 51, 60, 8


class ToyInfo(BaseProcessingInfo):
    """Any number of pictures of at most `largest` pixels."""

    def __init__(self, largest):
        super().__init__(SimpleNamespace(model="toy", multimodal=MultiModalConfig()))
        self.largest = largest

    def get_supported_mm_limits(self):
        return {"image": None}

    def get_mm_max_tokens_per_item(self):
        return {"image": self.largest}


class ToyProcessor(BaseMultiModalProcessor):
    """A picture is an array [rows, columns]; it stands where an IMAGE token is, a row of placeholders for each of its
    rows, and a BREAK, which is no embedding, after each."""

    def __init__(self, largest=12):
        super().__init__(ToyInfo(largest))

    def _process_item(self, modality, item, mm_kwargs):
        return {"pixels": np.asarray(item, float)}

    def _get_prompt_updates(self):
        def placeholders(data):
            rows, columns = data["pixels"].shape
            return PromptUpdateDetails.select_token_id(([IMAGE] * columns + [BREAK]) * rows, IMAGE)

        return [PromptReplacement("image", [IMAGE], placeholders)]


class ToyLanguageModel:
    """Embeds tokens."""

    def __init__(self, rng):
        self.table = rng.standard_normal((VOCAB, WIDTH))

    def embed_input_ids(self, input_ids):
        return self.table[input_ids]


class ToyVisionModel(SupportsMultiModal, SupportsMRoPE):
    """One layer of attention over what was embedded."""

    num_layers, num_kv_heads, num_heads, head_dim = 1, 1, 1, WIDTH
    use_mla, attn_scale, logits_soft_cap, sinks, is_engines_own = False, None, None, None, False
    vocab_size, max_model_len, eos_token_ids, bos_token_id = VOCAB, 128, [], None
    sliding_window, sliding_windows = None, [None]

    def __init__(self, largest=12):
        rng = np.random.default_rng(0)
        self.dtype = np.dtype(np.float64)
        self.language_model, self.processor = ToyLanguageModel(rng), ToyProcessor(largest)
        self.to_q, self.to_k, self.to_v, self.to_pixel, self.to_angle = (
            rng.standard_normal((n, WIDTH)) for n in (WIDTH, WIDTH, WIDTH, 1, 3)
        )
        self.to_logits = rng.standard_normal((WIDTH, VOCAB))
        self.num_encoded = []

    def make_mm_processor(self, model):
        return self.processor

    def get_language_model(self):
        return self.language_model

    def embed_multimodal(self, *, pixels):
        self.num_encoded.append(len(pixels))
        return [np.sin(one.reshape(-1, 1) @ self.to_pixel + np.arange(one.size)[:, None]) for one in pixels]

    def get_mrope_input_positions(self, input_tokens, mm_features):
        """A picture's tokens have its place, and a row and a column; the text behind goes on after the larger."""
        positions, at, token = np.zeros((3, len(input_tokens)), int), 0, 0
        for feature in [*mm_features, None]:
            stop = len(input_tokens) if feature is None else feature.mm_position.offset
            positions[:, token:stop] = at + np.arange(stop - token)
            at += stop - token
            if feature is not None:
                rows, columns = feature.data["pixels"].shape
                grid = np.array([(0, row, column) for row in range(rows) for column in range(columns + 1)]).T
                token = feature.mm_position.end
                positions[:, stop:token] = at + grid
                at += max(rows, columns + 1)
        return positions, at - len(input_tokens)

    def forward(self, input_ids, positions, attn, inputs_embeds=None):
        hidden = inputs_embeds + np.sin(positions.T @ self.to_angle)
        q, k, v = ((hidden @ weight)[:, None] for weight in (self.to_q, self.to_k, self.to_v))
        return np.sin(hidden + 5 * attn(0, q, k, v))

    def compute_logits(self, hidden):
        return hidden @ self.to_logits
