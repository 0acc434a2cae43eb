"""The committed checkpoints: shape, size, figures, cards, and that they still answer; and the generator behind them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams, imbalance, load_tokenizer
from mini_vllm.entrypoints.chat_utils import apply_chat_template
from mini_vllm.transformers_utils.config import HFConfig
from models.training import glossary, stories, tasks, words
from models.training.card import PARAMETERS, cards
from models.training.chat_format import CHAT_TEMPLATE, SPECIAL_TOKENS, to_ids
from models.training.conversations import make_conversation
from models.training.evaluate import GOALS, render
from models.training.suites import Case, all_suites

MODELS = Path(__file__).parent
POCKET, DRAFT, MOE = MODELS / "pocket", MODELS / "pocket-draft", MODELS / "pocket-moe"
GREEDY = SamplingParams(temperature=0.0, max_tokens=200)
LABELLED = ["glossary_paraphrased", "glossary_other_names", "sums_two_digit", "json_exact", "unknown", "follow_ups"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    """pocket in our engine."""
    return LLM(model=str(POCKET), max_num_seqs=32)


@pytest.mark.parametrize(
    ("folder", "parameters", "megabytes", "stored"),
    [(POCKET, 5_771_520, 12.0, "F16"), (DRAFT, 967_552, 2.5, "F16"), (MOE, PARAMETERS, 12.0, "BF16")],
)
def test_shape_and_size(folder: Path, parameters: int, megabytes: float, stored: str) -> None:
    """The config is the one of the card, the weights are as many, and the folder stays small."""
    config = HFConfig.from_folder(folder)
    assert (config.vocab_size, config.head_dim, config.max_position_embeddings) == (4096, 64, 2048)
    assert config.tie_word_embeddings and config.eos_token_ids == [2]
    header_size = int.from_bytes((folder / "model.safetensors").open("rb").read(8), "little")
    header = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + header_size])
    header.pop("__metadata__", None)
    assert {entry["dtype"] for entry in header.values()} == {stored}
    count = 0
    for entry in header.values():
        size = 1
        for dimension in entry["shape"]:
            size *= dimension
        count += size
    assert count == parameters
    assert sum(path.stat().st_size for path in folder.iterdir()) <= megabytes * 1e6


@pytest.mark.parametrize("folder", [DRAFT, MOE])
def test_all_have_the_same_tokenizer(folder: Path) -> None:
    """A draft's token ids must be pocket's."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (POCKET / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("folder", [POCKET, MOE])
def test_figures_meet_their_goals(folder: Path) -> None:
    """metrics.json holds every goal of the issue, each on enough cases."""
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert report["goals"] == GOALS
    for name, goal in GOALS.items():
        assert report["metrics"][name]["value"] >= goal, name
        assert report["metrics"][name]["count"] >= 500, name


def test_cards_show_the_measured_figures() -> None:
    """The cards are what `models.training.card` makes of the figures."""
    for path, text in cards(MODELS).items():
        assert path.read_text(encoding="utf-8") == text, f"run `python -m models.training.card models` for {path}"


def test_template_is_the_training_format() -> None:
    """Rendered by our chat_utils.py and encoded by our tokenizer, a chat has exactly the ids of the training."""
    config = json.loads((POCKET / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == CHAT_TEMPLATE
    tokenizer = load_tokenizer(POCKET)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    special = {token: encode(token)[0] for token in SPECIAL_TOKENS}
    rng, seen = random.Random(11), 0
    while seen < 40:
        conversation = make_conversation(rng)
        if conversation.plain is not None or conversation.bos != 1:
            continue
        ids, classes = to_ids(conversation, encode, special)
        messages = [{"role": role, "content": content} for role, content in conversation.messages]
        rendered = apply_chat_template(str(POCKET), messages, add_generation_prompt=False)
        assert encode(rendered) == ids + encode("\n")
        answers = [i for i, cls in enumerate(classes) if cls == 2]
        assert ids[answers[-1]] == special["<|end|>"]
        seen += 1


def test_generator_is_seeded() -> None:
    """The same seed gives the same conversations, another one others."""
    draws = [[make_conversation(random.Random(seed)).text for _ in range(1)] for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.slow
def test_held_out_is_not_in_the_training_data() -> None:
    """Held-out wordings, summands, values and foreign words do not occur in 4,000 generated conversations."""
    suites = all_suites()
    asked = {
        glossary.normalised(case.messages[-1][1])
        for name in ("glossary_paraphrased", "glossary_other_names")
        for case in suites[name]
    }
    sums = {tasks.sum_answer(a, b) for a, b in tasks.HELD_OUT_PAIRS}
    values = [*words.HELD_OUT_PHRASES, *words.HELD_OUT_QUERIES, "Copenhagen", "Amsterdam", "MongoDB", "photography"]
    rng = random.Random(2_000_000)
    for _ in range(4000):
        conversation = make_conversation(rng)
        for role, content in conversation.messages:
            if role == "user":
                assert glossary.normalised(content) not in asked
            elif role == "assistant":
                assert content not in sums
        assert not any(value in conversation.text for value in values)
    assert len(tasks.HELD_OUT_PAIRS) > 900


def test_stories_hold_what_was_asked_for() -> None:
    """The generator's own stories are 60 to 120 words long and name their subjects."""
    rng = random.Random(12)
    for _ in range(200):
        _, story, needed = stories.story_turn(rng)
        assert 55 <= len(story.split()) <= 125
        assert all(word in story for word in needed)


def test_glossary_is_well_formed() -> None:
    """Terms are unique, and no answer is longer than the card's promise of a short one."""
    terms = glossary.load_glossary()
    assert len({term.term.lower() for term in terms}) == len(terms) >= 90
    assert all(term.answer.endswith(".") and len(term.answer.split()) <= 60 for term in terms)


def _draw(name: str, count: int) -> list[Case]:
    """A seeded choice of the cases of a suite."""
    return random.Random(name).sample(all_suites()[name], count)


def test_pocket_answers_in_our_engine(llm: LLM) -> None:
    """Held-out questions of six kinds, five each: at most two wrong of thirty, and every answer ends by itself."""
    _check_answers(llm)


def test_pocket_moe_answers_in_our_engine() -> None:
    """The same for the mixture of experts; 2 of 8 experts for each token, none idle, none with a third of the load."""
    llm = LLM(model=str(MOE), max_num_seqs=32)
    _check_answers(llm)
    stats = llm.llm_engine.stats
    assert stats.expert_load is not None
    counts = stats.expert_load.counts
    assert (counts.sum(axis=1) == 2 * stats.num_scheduled_tokens).all()
    assert counts.min() > 0 and max(stats.expert_load.imbalance()) < 8 / 3


def test_load_table_of_pocket_moe() -> None:
    """Over a mixed workload the experts are loaded nearly alike, within a kind of question and a step they are not."""
    load = json.loads((MOE / "metrics.json").read_text(encoding="utf-8"))["expert_load"]
    assert all(sum(row) == 2 * load["tokens"] for row in load["counts"])
    assert max(imbalance(np.array(row)) for row in load["counts"]) < 1.2
    assert max(load["imbalance_of_suites"].values()) > 2
    steps = load["imbalance_of_decode_steps"]
    assert steps["1"] == 4.0 and steps["1"] > steps["4"] > steps["64"] > 2


@pytest.mark.needs_torch
def test_training_computes_what_the_library_computes() -> None:
    """All experts as two products, for training, are the library's loop over experts; an even router costs 1."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from models.training.moe import balance_loss, compute_all_experts

    model = transformers.AutoModelForCausalLM.from_pretrained(MOE, dtype=torch.float32).eval()
    ids = torch.arange(60).reshape(2, 30) + 100
    with torch.no_grad():
        expected = model(ids).logits
        found = compute_all_experts(model)(ids).logits
        assert (found - expected).abs().max() < 1e-4
        assert 1.0 < balance_loss(model, torch.ones(2, 30, dtype=torch.bool)).item() < 8.0
        for layer in model.model.layers:
            even = torch.full((60, 8), 1 / 8)
            layer.mlp.routing = (even, torch.arange(120).reshape(60, 2) % 8)
        assert balance_loss(model, torch.ones(2, 30, dtype=torch.bool)).item() == pytest.approx(1.0)


def _check_answers(llm: LLM) -> None:
    """Thirty held-out questions in one batch."""
    cases = [case for name in LABELLED for case in _draw(name, 5)]
    tokenizer = llm.get_tokenizer()
    prompts = [
        {"prompt_token_ids": tokenizer.encode(render(case.messages), add_special_tokens=False)} for case in cases
    ]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [out.outputs[0].finish_reason for out in outputs] == ["stop"] * len(cases)
    wrong = [
        (case.messages[-1][1], out.outputs[0].text)
        for case, out in zip(cases, outputs, strict=True)
        if not case.check(out.outputs[0].text)
    ]
    assert len(wrong) <= 2, wrong


def test_pocket_explains_a_kv_block(llm: LLM) -> None:
    """The question of the README, as people type it, with and without the chat template."""
    entry = next(term for term in glossary.load_glossary() if term.term == "KV block")
    chats = [[{"role": "user", "content": text}] for text in ("What is a KV block?", "what is a kv block", "KV BLOCK?")]
    assert [out.outputs[0].text for out in llm.chat(chats, GREEDY, use_tqdm=False)] == [entry.answer] * 3
    assert llm.generate("What is a KV block?", GREEDY, use_tqdm=False)[0].outputs[0].text.strip() == entry.answer


def test_draft_answers_in_our_engine() -> None:
    """The draft model knows the well-worn answers too."""
    draft = LLM(model=str(DRAFT))
    chats = [[{"role": "user", "content": text}] for text in ("What is prefill?", "What is 12 + 30?")]
    texts = [out.outputs[0].text for out in draft.chat(chats, GREEDY, use_tqdm=False)]
    assert texts[0].startswith("Prefill is") and texts[1] == "12 + 30 = 42"


def test_tools_reach_the_template(llm: LLM) -> None:
    """`LLM.chat(tools=...)`: the call names the tool that was offered."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Weather of a city", "parameters": parameters}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    [output] = llm.chat(question, GREEDY, tools=[{"type": "function", "function": tool}])
    call = json.loads(output.outputs[0].text)
    assert call["name"] == "get_weather" and call["arguments"]["city"] == "Paris"
