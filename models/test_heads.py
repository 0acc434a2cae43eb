"""pocket-eagle and pocket-medusa: shape, size, figures, and that trainer and engine compute the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import SamplingParams
from models.training.acceptance import KINDS, make_engine, measure, questions
from models.training.evaluate import render

MODELS = Path(__file__).parent
POCKET, EAGLE, MEDUSA = MODELS / "pocket", MODELS / "pocket-eagle", MODELS / "pocket-medusa"


def read_header(folder: Path) -> dict[str, Any]:
    """Names, types and shapes of the tensors of a checkpoint."""
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return header


@pytest.mark.parametrize(("folder", "parameters"), [(EAGLE, 721_152), (MEDUSA, 919_040)])
def test_heads_are_small_and_stored_in_sixteen_bits(folder: Path, parameters: int) -> None:
    """At most 2 MB in all; floats in 16 bits, and only token ids in more; sizes are pocket's."""
    header = read_header(folder)
    weights = {name: entry for name, entry in header.items() if name != "token_map"}
    assert {entry["dtype"] for entry in weights.values()} == {"F16"}
    assert sum(math.prod(entry["shape"]) for entry in weights.values()) == parameters
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2e6
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["vocab_size"], config["hidden_size"]) == (4096, 256)


def test_heads_know_the_tokens_of_answers() -> None:
    """The figures that a page may quote: EAGLE sees the tokens between, Medusa does not."""
    eagle, medusa = (
        json.loads((each / "metrics.json").read_text(encoding="utf-8"))["kinds"] for each in (EAGLE, MEDUSA)
    )
    assert list(eagle) == list(medusa) == list(KINDS)
    for kind in KINDS:
        accepted, less = (sum(each[kind]["num_accepted_tokens_per_pos"]) for each in (eagle, medusa))
        assert accepted / eagle[kind]["num_draft_tokens"] > max(0.75, less / medusa[kind]["num_draft_tokens"])
        assert eagle[kind]["tokens"] == medusa[kind]["tokens"]  # the same answers, whoever drafts


@pytest.mark.slow
@pytest.mark.parametrize("folder", [EAGLE, MEDUSA])
def test_acceptance_is_measured_again(folder: Path) -> None:
    """Sums and calls; a near-tie may fall otherwise on another machine."""
    report, llm = json.loads((folder / "metrics.json").read_text(encoding="utf-8")), make_engine(folder)
    for kind in ("sums", "tool calls and JSON"):
        found, recorded = measure(llm, questions(kind)), report["kinds"][kind]
        assert abs(found["num_drafts"] - recorded["num_drafts"]) <= 0.02 * recorded["num_drafts"]
        for now, then in zip(
            found["num_accepted_tokens_per_pos"], recorded["num_accepted_tokens_per_pos"], strict=True
        ):
            assert abs(now - then) <= 0.02 * recorded["num_drafts"]


@pytest.mark.slow
@pytest.mark.needs_torch
def test_training_of_heads_computes_what_the_engine_computes() -> None:
    """The unrolled layer of the trainer makes the drafts that the engine makes, one after the other; so do the heads
    side by side."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    from models.training.heads import EagleHead, MedusaHeads

    target = transformers.AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.float32).eval()
    medusa = MedusaHeads(target, 3, 2, torch.arange(2048))
    eagle = EagleHead(target.config)
    for model, folder in ((eagle, EAGLE), (medusa, MEDUSA)):
        model.load_state_dict(safetensors.load_file(folder / "model.safetensors"))
        engine = make_engine(folder)
        runner = engine.llm_engine.engine_core.model_runner
        for question in ("What is a KV block?", "Tell me a story about a fox.", "What is 17 + 25?"):
            ids = engine.get_tokenizer().encode(render([("user", question)]), add_special_tokens=False)
            once = SamplingParams(temperature=0.0, max_tokens=1)
            [output] = engine.generate([{"prompt_token_ids": ids}], once, use_tqdm=False)
            [drafts] = runner.drafts.draft_token_ids.values()
            text = torch.tensor([[*ids, *output.outputs[0].token_ids, *drafts]])
            count, past, found = len(ids), [], []
            with torch.no_grad():
                given = target.model(input_ids=text[:, :count]).last_hidden_state
                for step in range(3):
                    if model is eagle:
                        embedded = target.model.embed_tokens(text[:, step + 1 : step + 1 + count])
                        given = model(embedded, given, step, past)
                        found.append(int(target.lm_head(given[0, -1]).argmax()))
                    else:
                        found.append(int(model.token_map[model(given[0, -1], step).argmax()]))
            assert found == drafts
