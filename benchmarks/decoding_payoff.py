"""What the settings of a request buy on pocket: `python -m benchmarks.decoding_payoff` (four minutes).

    facts     held-out glossary questions, answered word for word: the share that is right
    stories   one request for a story, many seeds: the share that is whole (has the words asked for, a story's length,
              and no word that the training's stories do not know), and how many different beginnings of six words
              these have
    votes     held-out questions for a number: one answer at temperature 0, a sample, the majority of many, any of many
    beams     the same questions by beam search

Facts and stories under eight temperatures and six filters; a setting is a row, the same questions and seeds in all.
Tokens, not times: a second run gives the same. Writes results/decoding_payoff.{json,md}.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from typing import Any

from benchmarks.common import ROOT, machine, save, table
from mini_vllm import LLM, BeamSearchParams, SamplingParams
from models.training import stories, words
from models.training.evaluate import render
from models.training.suites import Case, all_suites

TEMPERATURES = (0.0, 0.4, 0.7, 1.0, 1.3, 1.6, 2.0, 3.0)
FILTERS: dict[str, dict[str, Any]] = {
    "none": {}, "top_k=20": {"top_k": 20}, "top_k=5": {"top_k": 5}, "top_p=0.9": {"top_p": 0.9},
    "top_p=0.5": {"top_p": 0.5}, "min_p=0.1": {"min_p": 0.1},
}  # fmt: skip
STORY, ASKED = "Tell me a story about a fox and a violin.", ("fox", "violin")
NUM_FACTS, NUM_STORIES, NUM_VOTES, NUM_SAMPLES = 64, 64, 60, 16


def letters(text: str) -> list[str]:
    """Its words, in lower case."""
    return re.findall(r"[a-z]+", text.lower())


def known_words() -> set[str]:
    """Every word of two thousand stories of the training."""
    rng = random.Random(0)
    return {word for _ in range(2000) for word in letters(stories.write_story(rng))}


def is_whole(text: str, known: set[str]) -> bool:
    """A story's length, the words asked for, and no word that is none."""
    found = letters(text)
    return 45 <= len(found) <= 140 and set(ASKED) <= set(found) and set(found) <= known


def ask(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> list[Any]:
    """The completions of each prompt, in order."""
    texts = [{"prompt_token_ids": llm.get_tokenizer().encode(p, add_special_tokens=False)} for p in prompts]
    return [output.outputs for output in llm.generate(texts, params, use_tqdm=False)]


def one_setting(llm: LLM, facts: list[Case], known: set[str], given: dict[str, Any], count: int) -> dict[str, Any]:
    """A row: facts right, stories whole, stories that differ."""
    prompts = [render(case.messages) for case in facts]
    params = [SamplingParams(seed=i, max_tokens=110, **given) for i in range(len(facts))]
    answers = [made[0].text for made in ask(llm, prompts, params)]
    right = sum(case.check(text) for case, text in zip(facts, answers, strict=True))
    asked = [SamplingParams(seed=i, max_tokens=200, **given) for i in range(count)]
    told = [made[0].text for made in ask(llm, [render([("user", STORY)])] * count, asked)]
    whole = [text for text in told if is_whole(text, known)]
    beginnings = {" ".join(letters(text)[:6]) for text in whole}
    return {
        "facts": right, "of_facts": len(facts), "whole": len(whole), "of": count, "different": len(set(whole)),
        "beginnings": len(beginnings),
    }  # fmt: skip


def number_in(text: str) -> str:
    """The last number of an answer."""
    return (re.findall(r"\d+", text) or [""])[-1]


def votes(llm: LLM, cases: list[Case], samples: int) -> dict[str, Any]:
    """One greedy answer, a sample of many, the majority, any; and beams."""
    prompts, wanted = [render(case.messages) for case in cases], [number_in(case.expected) for case in cases]
    sure = [SamplingParams(temperature=0.0, max_tokens=60)] * len(cases)
    greedy = [number_in(made[0].text) for made in ask(llm, prompts, sure)]
    found: dict[str, Any] = {"cases": len(cases), "samples": samples, "greedy": same(greedy, wanted)}
    for temperature in (0.5, 1.0, 1.5):
        params = SamplingParams(n=samples, seed=0, temperature=temperature, max_tokens=60)
        drawn = [[number_in(one.text) for one in made] for made in ask(llm, prompts, [params] * len(cases))]
        majority = [Counter(sorted(each)).most_common(1)[0][0] for each in drawn]
        single = sum(x == want for each, want in zip(drawn, wanted, strict=True) for x in each) / samples
        some = sum(want in each for each, want in zip(drawn, wanted, strict=True))
        found[str(temperature)] = {"single": single, "majority": same(majority, wanted), "any": some}
    ids = [{"prompt_token_ids": llm.get_tokenizer().encode(p, add_special_tokens=False)} for p in prompts]
    beams = llm.beam_search(ids, BeamSearchParams(beam_width=4, max_tokens=40))
    best = [number_in(llm.get_tokenizer().decode(b.sequences[0].tokens[len(i["prompt_token_ids"]) :]))
            for b, i in zip(beams, ids, strict=True)]  # fmt: skip
    return {**found, "beams": same(best, wanted)}


def same(answers: list[str], wanted: list[str]) -> int:
    """How many are equal."""
    return sum(a == w for a, w in zip(answers, wanted, strict=True))


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two settings, few questions; writes nothing")
    quick = parser.parse_args().quick
    facts_of_machine, suites, known = machine(), all_suites(), known_words() | set(words.NAMES)
    llm = LLM(str(ROOT / "models" / "pocket"), max_num_seqs=64, num_blocks=1024)
    facts = random.Random(0).sample(suites["glossary_paraphrased"], 4 if quick else NUM_FACTS)
    rows = []
    for temperature in (1.0, 2.0) if quick else TEMPERATURES:
        for name, given in FILTERS.items():
            if temperature or name == "none":
                count = 4 if quick else NUM_STORIES
                row = one_setting(llm, facts, known, {"temperature": temperature, **given}, count)
                rows.append({"temperature": temperature, "filter": name, **row})
    asked = suites["blocks_for_tokens"][: 4 if quick else NUM_VOTES]
    voted = votes(llm, asked, 4 if quick else NUM_SAMPLES)
    lines = [[r["temperature"], r["filter"], r["facts"], r["whole"], r["different"], r["beginnings"]] for r in rows]
    text = table(["temperature", "filter", f"facts right of {rows[0]['of_facts']}",
                  f"stories whole of {rows[0]['of']}", "different ones", "beginnings"], lines)  # fmt: skip
    ways = [["temperature 0", voted["greedy"]], ["beams, width 4", voted["beams"]]]
    for name in ("0.5", "1.0", "1.5"):
        ways += [[f"temperature {name}, {kind}", value] for kind, value in voted[name].items()]
    text += "\n\n" + table(["a number asked for", f"right of {voted['cases']}"], ways)
    result = {"machine": facts_of_machine, "rows": rows, "votes": voted}
    save("decoding_payoff", result, f"# What the settings of a request buy\n\n{text}\n", keep=not quick)


if __name__ == "__main__":
    main()
