"""The adapters of pocket that were trained and committed: size, figures, and that all compute the same with them.

A mixed batch = each alone = the merged weights = PEFT merged in transformers = the real vLLM's own adapters, whose
answers are in `golden/lora-server.json.xz`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.tests.golden import lora_cases
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.lora.adapters import save_merged
from models.training.card_lora import adapter_card

MODELS = Path(__file__).resolve().parents[3] / "models"
NAMES = ("pirate", "json", "sums")
REQUESTS = {name: LoRARequest(name, i, str(MODELS / f"pocket-lora-{name}")) for i, name in enumerate(NAMES, 1)}
RECORDED = read_packed(Path(lora_cases.__file__).parent / "lora-server.json.xz")
ASKED = [case for case in lora_cases.CASES if case["name"].startswith(tuple(f"chat: {n}: " for n in lora_cases.NAMES))]
ROWS = [(case["json"]["model"], RECORDED["answers"][case["name"]]["body"]) for case in ASKED]
PROMPTS = [{"prompt_token_ids": body["prompt_token_ids"]} for _, body in ROWS]
GREEDY = SamplingParams(temperature=0, max_tokens=40, logprobs=0)


@pytest.fixture(scope="module")
def mixed():
    """Every recorded chat in one batch, each with its own adapter; the engine that answered, and its outputs."""
    llm = LLM(str(MODELS / "pocket"), enable_lora=True, max_loras=3, max_lora_rank=8, num_blocks=512)
    wanted = [REQUESTS.get(name) for name, _ in ROWS]
    return llm, llm.generate(PROMPTS, GREEDY, lora_request=wanted, use_tqdm=False)


def tokens(output):
    return list(output.outputs[0].token_ids)


def test_a_mixed_batch_gives_the_real_releases_tokens(mixed):
    assert len(ROWS) >= 20
    for (_, body), output in zip(ROWS, mixed[1], strict=True):
        assert tokens(output) == body["choices"][0]["token_ids"]
    said = {
        name: [tokens(o) for (n, _), o in zip(ROWS, mixed[1], strict=True) if n == name] for name in lora_cases.NAMES
    }
    for name in NAMES:
        assert said[name] != said["pocket"], f"{name} answers as the base does: nothing was tested"


def test_each_alone_gives_what_the_batch_gives(mixed):
    llm, outputs = mixed
    for name, prompt, output in list(zip((n for n, _ in ROWS), PROMPTS, outputs, strict=True))[::5]:
        alone = llm.generate([prompt], GREEDY, lora_request=REQUESTS.get(name), use_tqdm=False)[0]
        assert tokens(alone) == tokens(output)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_merged_weights_give_the_same(mixed, tmp_path, name):
    """In float64, and the merged weights rounded to the float32 in which pocket is computed."""
    folder = save_merged(tmp_path / name, MODELS / "pocket", Path(REQUESTS[name].lora_path))
    llm = LLM(str(folder), dtype="float32", num_blocks=512)
    chosen = [i for i, (asked, _) in enumerate(ROWS) if asked == name]
    found = llm.generate([PROMPTS[i] for i in chosen], GREEDY, use_tqdm=False)
    assert [tokens(output) for output in found] == [tokens(mixed[1][i]) for i in chosen]


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("name", NAMES)
def test_peft_merged_in_transformers_gives_the_same(mixed, name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "pocket", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, REQUESTS[name].lora_path).merge_and_unload().eval()
    for i, (asked, _) in enumerate(ROWS):
        if asked == name:
            given, wanted = PROMPTS[i]["prompt_token_ids"], tokens(mixed[1][i])
            with torch.no_grad():
                logits = model(torch.tensor([[*given, *wanted]])).logits[0, len(given) - 1 : -1]
            assert logits.argmax(-1).tolist() == wanted


@pytest.mark.parametrize("name", NAMES)
def test_adapters_are_small_and_their_cards_true(name):
    """At most 300 kB each in 16 bits; the card shows the figures, and the skill is learned."""
    folder = Path(REQUESTS[name].lora_path)
    weights = (folder / "adapter_model.safetensors").read_bytes()
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    assert len(weights) <= 300_000
    assert {entry["dtype"] for key, entry in header.items() if key != "__metadata__"} == {"F16"}
    suites = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["suites"]
    first = next(iter(suites.values()))
    assert first["adapter"] / first["cases"] >= 0.8
    assert (folder / "README.md").read_text(encoding="utf-8") == adapter_card(folder)
