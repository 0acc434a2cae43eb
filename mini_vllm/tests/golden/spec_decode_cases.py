"""What is asked of pocket with drafts, here and of the real engine. Imports neither."""

METHODS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "ngram-1": {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft_model": {"method": "draft_model", "model": "models/pocket-draft", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "model": "models/pocket-eagle", "num_speculative_tokens": 3},
    "eagle-1": {"method": "eagle", "model": "models/pocket-eagle", "num_speculative_tokens": 1},
    "medusa": {"method": "medusa", "model": "models/pocket-medusa", "num_speculative_tokens": 3},
    "medusa-2": {"method": "medusa", "model": "models/pocket-medusa", "num_speculative_tokens": 2},
    "draft_model-1": {"method": "draft_model", "model": "models/pocket-draft", "num_speculative_tokens": 1},
}
ENGINE = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "block_size": 16, "max_num_seqs": 16,
    "max_num_batched_tokens": 512, "seed": 0,
}  # fmt: skip
MAX_TOKENS = 48
_LIST = "\n".join(f'{{"name": "block {n}", "size": 16, "free": true}},' for n in range(1, 6))
PROMPTS = [
    "What is a KV block?",
    "Tell me a story about a dragon and a lamp.",
    "the cat sat on the mat. the cat sat on the mat. the cat sat on the",
    "Continue this list:\n" + _LIST,
    "one two three four one two three four one two three four one two",
    "Say the alphabet: a b c d e f g a b c d e f g a b c",
    "Explain what a scheduler does with a token budget, in two sentences.",
    "Write JSON with the keys name, age and city for a girl in Rome.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return",
    "Once upon a time there was a small red boat. The small red boat",
    "Repeat after me: prefix caching finds equal prefixes. prefix caching finds equal",
    "Why is the sky blue?",
]
