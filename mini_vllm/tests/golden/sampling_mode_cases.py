"""What is asked of pocket under each `logprobs_mode`, with a thinking budget, and beside drafts, here and of the real
engine. Imports neither."""

ENGINE = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "block_size": 16, "max_num_seqs": 16,
    "max_num_batched_tokens": 512, "seed": 0, "enable_prefix_caching": False,
}  # fmt: skip
MODES = ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
DRAFT_MODEL = {"method": "draft_model", "model": "models/pocket-draft", "num_speculative_tokens": 3}
PROMPTS = [
    "Repeat after me: prefix caching finds equal prefixes. prefix caching finds equal",
    "Tell me a story about a dragon and a lamp.",
]
GREEDY = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 0.0, "frequency_penalty": 0.8, "bad_words": ["equal", "the", "lamp"]},
    {"temperature": 0.0, "allowed_token_ids": list(range(200, 1400))},
    {"temperature": 0.0, "min_tokens": 8, "stop_token_ids": [300, 265, 270]},
]
"""Rows that draw nothing."""
ONE_LEFT = [
    {"temperature": 0.5, "top_k": 1, "seed": 1},
    {"temperature": 1.7, "top_k": 1, "frequency_penalty": 0.6, "seed": 2},
    {"temperature": 0.7, "top_p": 1e-6, "seed": 3},
]
"""Rows that draw, from a single token."""
FIRST_STEP = [
    {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "seed": 4},
    {"temperature": 2.0, "min_p": 0.02, "seed": 5},
    {"temperature": 1.3, "logit_bias": {300: 40.0, 301: -3.0}, "seed": 6},
]
"""Rows that draw from several: what is drawn differs, what was offered may not. Without drafts alone, which in the real
engine switch min_p and logit_bias off."""
MAX_TOKENS, LOGPROBS = 12, 4

THINKING = {
    "one token": {"reasoning_start_str": " lived", "reasoning_end_str": "."},
    "several tokens": {"reasoning_start_str": " lived", "reasoning_end_str": " So it was, said the miller."},
    "in the prompt": {"reasoning_start_str": "about a", "reasoning_end_str": " Now then:"},
}
THINKING_PROMPTS = [
    "<|user|>\nTell me a story about a fox and a violin.<|end|>\n<|assistant|>\n",
    "<|user|>\nTell me a story.<|end|>\n<|assistant|>\nIn a house near the mill lived",
    "<|user|>\nWhat is a KV block?<|end|>\n<|assistant|>\n",
    "<|user|>\nRepeat: he lived. he lived. he lived.<|end|>\n<|assistant|>\nhe lived. he",
]
BUDGETS = [None, 0, 1, 3, 7, 40]
THINKING_TOKENS = 32
