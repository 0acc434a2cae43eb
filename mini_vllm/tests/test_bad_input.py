"""Every wrong input is one clear error at the door: the argument, its value, what is allowed. Nothing is queued.

`python -m mini_vllm.tests.test_bad_input` prints the list with the messages.
"""

import json
import math

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, make_weights, save_safetensors, save_tiny

OK = {"max_tokens": 4}

# name, keyword arguments of generate() built from (prompts, params), expected words in the message
REQUESTS = [
    ("empty prompt", "", OK, "prompt must have at least one token"),
    ("empty token list", {"prompt_token_ids": []}, OK, "prompt must have at least one token"),
    (
        "token outside the vocabulary",
        {"prompt_token_ids": [1, 257]},
        OK,
        r"prompt_token_ids\[1\] = 257 is outside the vocabulary \(0 to 256\)",
    ),
    ("negative token", {"prompt_token_ids": [-1]}, OK, r"prompt_token_ids\[0\] = -1 is outside"),
    ("token of a wrong type", {"prompt_token_ids": [1, "2"]}, OK, r"prompt_token_ids\[1\] must be an int, got '2'"),
    (
        "prompt as long as the context",
        "x" * 128,
        OK,
        "prompt has 128 tokens; it must be shorter than max_model_len = 128",
    ),
    ("can never fit the pool", "x" * 100, {"max_tokens": 20}, r"needs room for 119 tokens, but the KV cache holds 96"),
    ("prompt of a wrong type", 7, OK, "prompt must be a string, a list of token ids, or a dict"),
    ("unknown key in a prompt", {"promt": "hi"}, OK, "unknown key 'promt' in prompt"),
    ("max_tokens=0", "hi", {"max_tokens": 0}, "max_tokens.*0"),
    ("temperature below zero", "hi", {"temperature": -0.5}, "temperature.*-0.5"),
    ("temperature NaN", "hi", {"temperature": math.nan}, "temperature.*nan"),
    ("top_p=0", "hi", {"top_p": 0.0}, "top_p.*0"),
    ("top_p above one", "hi", {"top_p": 1.5}, "top_p.*1.5"),
    ("top_k below -1", "hi", {"top_k": -2}, "top_k.*-2"),
    ("min_p above one", "hi", {"min_p": 2.0}, "min_p.*2"),
    ("n=0", "hi", {"n": 0}, "n must be.*0|n=0|n .*0"),
    ("unknown parameter", "hi", {"temprature": 0.5}, "temprature.*temperature"),
    ("min_tokens above max_tokens", "hi", {"min_tokens": 9, "max_tokens": 4}, "min_tokens"),
    ("empty stop string", "hi", {"stop": ""}, "stop"),
    ("allowed token outside the vocabulary", "hi", {"allowed_token_ids": [999]}, "allowed_token_ids.*999"),
    ("more logprobs than tokens", "hi", {"logprobs": 999}, "logprobs.*999"),
]

ENGINES = [
    ("unknown engine argument", {"block_sise": 16}, "unknown engine argument 'block_sise'; did you mean 'block_size'"),
    ("block_size=0", {"block_size": 0}, "block_size must be at least 1, got 0"),
    ("block_size of a wrong type", {"block_size": 16.0}, "block_size must be a whole number, got 16.0"),
    ("num_blocks=1", {"num_blocks": 1}, "num_blocks must be at least 2"),
    ("budget 0", {"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
    ("budget below seats", {"max_num_batched_tokens": 4, "max_num_seqs": 8}, "at least max_num_seqs"),
    ("unknown policy", {"scheduling_policy": "lifo"}, "scheduling_policy must be one of"),
    ("unknown dtype", {"dtype": "int8"}, "dtype must be one of"),
    ("context beyond the model's", {"max_model_len": 1 << 20}, "max_model_len must be at most the model's context"),
    ("unknown attention backend", {"attention_backend": "flash"}, "attention_backend|attention backend"),
]


@pytest.mark.parametrize(("name", "prompt", "params", "message"), REQUESTS, ids=[case[0] for case in REQUESTS])
def test_bad_request_raises_and_nothing_is_queued(name, prompt, params, message):
    llm = LLM(num_blocks=7, block_size=16, max_model_len=128)
    with pytest.raises((ValueError, TypeError), match=message):
        llm.generate(["fine", prompt], [SamplingParams(**OK), SamplingParams(**params)])
    assert not llm.llm_engine.has_unfinished_requests()
    assert len(llm.generate("fine", SamplingParams(**OK))[0].outputs[0].token_ids) <= 4


@pytest.mark.parametrize(("name", "args", "message"), ENGINES, ids=[case[0] for case in ENGINES])
def test_bad_engine_argument(name, args, message):
    with pytest.raises(ValueError, match=message):
        LLM(**args)


def test_the_message_names_the_prompt():
    with pytest.raises(ValueError, match=r"^prompts\[1\]: prompt must have at least one token"):
        LLM(num_blocks=8).generate(["fine", ""])


def test_counts_must_agree():
    llm = LLM(num_blocks=8)
    with pytest.raises(ValueError, match="sampling_params must be one, or one for each of 2 prompts, got 1"):
        llm.generate(["a", "b"], [SamplingParams(**OK)])
    with pytest.raises(ValueError, match="priority must have one number for each of 2 prompts, got 1"):
        llm.generate(["a", "b"], SamplingParams(**OK), priority=[1])
    assert llm.generate("a", SamplingParams(**OK), priority=[1], use_tqdm=False)  # no effect under fcfs, as upstream


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def reshape(folder):
    weights = make_weights("llama")
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    save_safetensors(folder / "model.safetensors", weights)


def drop(folder):
    weights = make_weights("llama")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_safetensors(folder / "model.safetensors", weights)


CHECKPOINTS = [
    ("truncated shard", truncate, r"model\.safetensors"),
    ("wrong tensor shape", reshape, r"model\.norm\.weight.*63|63.*model\.norm\.weight"),
    ("missing tensor", drop, r"model\.layers\.1\.mlp\.up_proj\.weight"),
    ("unknown architecture", lambda f: edit_config(f, architectures=["FooForCausalLM"]), "FooForCausalLM"),
    ("unsupported rope_scaling", lambda f: edit_config(f, rope_scaling={"rope_type": "ntk", "factor": 2.0}), "ntk"),
    ("a key that could change the mathematics", lambda f: edit_config(f, logit_scale=2.0), "logit_scale"),
    ("unsupported activation", lambda f: edit_config(f, hidden_act="gelu"), "gelu"),
]


@pytest.mark.parametrize(("name", "damage", "message"), CHECKPOINTS, ids=[case[0] for case in CHECKPOINTS])
def test_damaged_checkpoint(name, damage, message, tmp_path):
    folder = save_tiny("llama", tmp_path / "llama")
    damage(folder)
    with pytest.raises(ValueError, match=message):
        LLM(str(folder))


def test_missing_folder(tmp_path):
    with pytest.raises((FileNotFoundError, ValueError), match="nowhere"):
        LLM(str(tmp_path / "nowhere"))


def test_pool_smaller_than_the_context(tmp_path):
    folder = save_tiny("llama", tmp_path / "llama")
    with pytest.raises(ValueError, match=r"kv_cache_memory_bytes=100000 holds .* but max_model_len is 256"):
        LLM(str(folder), kv_cache_memory_bytes=100_000)


def test_every_family_is_covered():
    assert {config["architectures"][0] for config in FAMILIES.values()} >= {
        "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "OPTForCausalLM",
    }  # fmt: skip


def _main() -> None:
    import tempfile
    from pathlib import Path

    def show(name, action):
        try:
            action()
        except (ValueError, TypeError, FileNotFoundError) as error:
            print(f"{name}\n    {type(error).__name__}: {error}")
        else:
            raise AssertionError(f"{name}: no error")

    llm = LLM(num_blocks=7, block_size=16, max_model_len=128)
    for name, prompt, params, _ in REQUESTS:
        show(name, lambda prompt=prompt, params=params: llm.generate(prompt, SamplingParams(**params)))
    for name, args, _ in ENGINES:
        show(name, lambda args=args: LLM(**args))
    with tempfile.TemporaryDirectory() as scratch:
        for index, (name, damage, _) in enumerate(CHECKPOINTS):
            folder = save_tiny("llama", Path(scratch) / str(index))
            damage(folder)
            show(name, lambda folder=folder: LLM(str(folder)))
    show("missing folder", lambda: LLM("./nowhere"))


if __name__ == "__main__":
    _main()
