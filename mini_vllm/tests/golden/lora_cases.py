"""Requests about adapters, for `record_lora_server.py` and `test_lora_server.py`: the server starts with two adapters,
a third is loaded and unloaded while it runs. One slot
stays empty: the real CPU build hands rows without an adapter the last slot's."""

from mini_vllm.tests.golden.server_requests import Case, case, chat, completion

ARGS = {
    "dtype": "float32", "max_model_len": 512, "served_model_name": "pocket", "enable_lora": True, "max_loras": 4,
    "max_lora_rank": 8, "block_size": 16, "enforce_eager": True, "max_num_seqs": 32,
    "max_num_batched_tokens": 512,
    "lora_modules": ["pirate=models/pocket-lora-pirate",
                     '{"name": "json", "path": "models/pocket-lora-json", "base_model_name": "pocket"}'],
}  # fmt: skip
SYSTEM = "You can call tools.\nTools:\nadd(a, b)\nroll_dice(sides)\nTo call one, answer with one JSON object."
QUESTIONS = ("What is a KV block?", "What is prefix caching?", "What is 12 + 34 + 56?", "Who are you?", "add 7 and 35")
NAMES = ("pocket", "pirate", "json", "sums")


def asked(name: str, question: str, **fields) -> Case:
    """A chat, long enough to tell the adapters apart; the tokens come with it."""
    told = [{"role": "system", "content": SYSTEM}] if question.startswith("add") else []
    turns = [*told, {"role": "user", "content": question}]
    return chat(f"{name}: {question}", turns, model=name, max_tokens=40, return_token_ids=True, **fields)


def load(name: str, lora_name: str, path: str, **fields) -> Case:
    return case(name, "/v1/load_lora_adapter", {"lora_name": lora_name, "lora_path": path, **fields})


def unload(name: str, lora_name: str) -> Case:
    return case(name, "/v1/unload_lora_adapter", {"lora_name": lora_name})


CASES: list[Case] = [
    case("models at start", "/v1/models"),
    chat("not loaded yet", model="sums"),
    load("load sums", "sums", "models/pocket-lora-sums"),
    case("models with sums", "/v1/models"),
    *(asked(name, question) for question in QUESTIONS for name in NAMES),
    completion("of an adapter", ["The scheduler", "A block"], model="pirate", max_tokens=16, return_token_ids=True),
    completion("streamed", "The scheduler", model="pirate", max_tokens=8, stream=True),
    chat("streamed", model="json", stream=True, stream_options={"include_usage": True}),
    case("tokenize", "/tokenize", {"model": "pirate", "prompt": "A block"}),
    load("load sums again", "sums", "models/pocket-lora-sums"),
    load("load in place", "sums", "models/pocket-lora-sums", load_inplace=True),
    load("load nothing", "gone", "models/nowhere"),
    load("load no adapter", "gone", "models/pocket"),
    load("load without a name", "", "models/pocket-lora-sums"),
    load("load without a path", "gone", ""),
    case("load with no fields", "/v1/load_lora_adapter", {}),
    case("load as text", "/v1/load_lora_adapter", method="POST", content="x"),
    unload("unload sums", "sums"),
    case("models without sums", "/v1/models"),
    chat("unloaded", model="sums"),
    unload("unload sums again", "sums"),
    unload("unload without a name", ""),
    case("unload with no fields", "/v1/unload_lora_adapter", {}),
    load("load sums after that", "sums", "models/pocket-lora-sums"),
    asked("sums", "What is 3 + 4 + 5?"),
]
