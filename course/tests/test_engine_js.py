"""The engine of the website (docs/engine-js) decides, tokenizes, samples and answers as mini_vllm and real vLLM do.

Node runs it: `engine_js.mjs` takes a list of jobs as JSON and prints their results.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from course.labs import ROOT
from mini_vllm.entrypoints.chat_template import render
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.logprobs import softmax
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.scheduler_workload import EOS, Workload, make_workload, sampled_token
from mini_vllm.tests.helpers import GOLDEN, POCKET
from mini_vllm.tokenizers.bpe import BPETokenizer

ENGINE = ROOT / "docs" / "engine-js"
NODE = shutil.which("node")


def node_is_old() -> bool:
    """Whether node is absent, or older than the engine needs."""
    if NODE is None:
        return True
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=False).stdout
    return int((re.match(r"v(\d+)", version) or [0, 0])[1]) < 18


needs_node = pytest.mark.skipif(node_is_old(), reason="needs node 18 or later (apt install nodejs)")
pytestmark = [pytest.mark.maintainer, needs_node]


def node(*jobs: dict[str, Any]) -> list[Any]:
    """The results of jobs, in their order; see `engine_js.mjs`."""
    command = [NODE or "node", str(ROOT / "course/tests/engine_js.mjs"), str(ROOT)]
    done = subprocess.run(
        command, input=json.dumps(jobs), capture_output=True, encoding="utf-8", timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- the scheduler, beside the recorded decisions of real vLLM 0.22.1


@lru_cache
def traces() -> list[Any]:
    return read_packed(GOLDEN / "scheduler-traces.json.xz")["traces"]


def first_come_first_served() -> list[int]:
    """Seeds of the recorded workloads that this scheduler knows: no priorities, no scheduling ahead of the results."""
    configs = [make_workload(seed).config for seed in range(len(traces()))]
    return [i for i, config in enumerate(configs) if config["policy"] == "fcfs" and not config["async"]]


def replay_job(workload: Workload, **options: str) -> dict[str, Any]:
    tokens, steps = {}, []
    for arrivals, abort, reset in zip(workload.arrivals, workload.aborts, workload.resets, strict=True):
        rows = []
        for a in arrivals:
            eos = None if a.ignore_eos else EOS
            params = {"max_tokens": a.max_tokens, "stop_token_ids": a.stop_token_ids, "eos_token_id": eos}
            rows.append({"request_id": a.request_id, "prompt": a.prompt, "params": params})
            tokens[a.request_id] = [sampled_token(workload.seed, a.request_id, i) for i in range(a.max_tokens)]
        steps.append({"arrivals": rows, "abort": abort, "reset": reset})
    given = {"config": workload.config, "tokens": tokens, "steps": steps}
    return {"job": "replay", "workload": given, "steps": len(traces()[workload.seed]), **options}


def differences(seeds: list[int], **options: str) -> list[str]:
    """The first step of each workload where decisions differ from the recorded ones, in words."""
    found = []
    results = node(*(replay_job(make_workload(seed), **options) for seed in seeds))
    for seed, result in zip(seeds, results, strict=True):
        for index, (theirs, ours) in enumerate(zip(traces()[seed], result["records"], strict=True)):
            if ours != {**theirs, "order": list(theirs["tokens"])}:
                fields = {key: (theirs[key], ours[key]) for key in theirs if theirs[key] != ours[key]}
                found.append(f"workload {seed}, step {index}: (vLLM 0.22.1, JavaScript): {fields}")
                break
        if result["unfinished"]:
            found.append(f"workload {seed} goes on after {len(traces()[seed])} steps")
    return found


def test_decisions_equal_real_vllms() -> None:
    seeds = first_come_first_served()[::9]
    assert len(seeds) >= 18
    assert sum(bool(step["preempted"]) for seed in seeds for step in traces()[seed]) > 50
    assert differences(seeds) == []


@pytest.mark.slow
def test_every_decision_equals_real_vllms() -> None:
    seeds = first_come_first_served()
    assert len(seeds) >= 150 and sum(len(traces()[seed]) for seed in seeds) > 20_000
    assert differences(seeds) == []


@pytest.mark.parametrize("hash", ["constant", "sum"])
def test_a_hash_that_collides_changes_no_decision(hash: str) -> None:
    seeds = [seed for seed in first_come_first_served() if traces()[seed][-1]["hits"][1] > 50][:12]
    assert len(seeds) == 12
    assert differences(seeds, hash=hash) == []


@pytest.mark.parametrize("mutation", ["free order", "one block fewer hit", "preempt the oldest"])
def test_the_replay_would_notice(mutation: str) -> None:
    assert differences(first_come_first_served()[:16], mutation=mutation)


# --- the answers, beside recordings of mini_vllm and of real vLLM


@lru_cache
def recorded() -> dict[str, Any]:
    return json.loads((ENGINE / "answers.json").read_text(encoding="utf-8"))


def ask(rows: list[dict[str, Any]], engine: dict[str, Any], together: bool) -> list[dict[str, Any]]:
    """Our answers to recorded conversations: each in a step of its own engine's time, or all at once."""
    arrivals: dict[int, list[Any]] = {}
    for i, row in enumerate(rows):
        params = {"max_tokens": len(row["token_ids"]) + 1, "temperature": 0}
        arrivals.setdefault(0 if together else 300 * i, []).append(
            {"id": str(i), "messages": row["messages"], "params": params}
        )
    [result] = node({"job": "run", "engine": engine, "arrivals": arrivals})
    assert result["kept"] <= max(1, len(rows) // 2), "the runner forgets who has ended"
    return [result["answers"][str(i)] for i in range(len(rows))]


def assert_equal(rows: list[dict[str, Any]], answers: list[dict[str, Any]]) -> int:
    """Prompts and tokens are the recorded ones; returns the number of comparisons that stopped at a narrow gap."""
    for row, answer in zip(rows, answers, strict=True):
        assert answer["prompt_token_ids"] == row["prompt_token_ids"]
        until = row["stops_at"]
        assert answer["token_ids"][:until] == row["token_ids"][:until], row["messages"]
        if until is None:
            assert (answer["text"], answer["finish_reason"]) == (row["text"], row["finish_reason"])
    return sum(row["stops_at"] is not None for row in rows)


SMALL = {"block_size": 4, "num_blocks": 60, "max_num_seqs": 6, "max_num_batched_tokens": 24}
"""Long prompts come in chunks, and answers that grow together do not all fit."""


def test_answers_equal_mini_vllms_with_preemptions_and_hits() -> None:
    rows = [*recorded()["answers"][:2], *recorded()["answers"][22:25]]
    answers = ask(rows, SMALL, together=True)
    assert assert_equal(rows, answers) == 0
    assert sum(answer["num_preemptions"] for answer in answers) > 0
    assert sum(answer["num_cached_tokens"] for answer in answers) > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", [{}, SMALL, {**SMALL, "enable_prefix_caching": False}, {"block_size": 1}])
def test_every_answer_equals_mini_vllms(engine: dict[str, Any]) -> None:
    """Together; where nothing is said of the engine, every third alone too. Of the two last engines, half of them."""
    rows = recorded()["answers"]
    rows = rows[1::2] if "enable_prefix_caching" in engine else rows[::2] if engine and engine is not SMALL else rows
    for together in [True] if engine else [True, False]:
        rows = rows if together else rows[::3]
        answers = ask(rows, {"num_blocks": 3000, **engine}, together)
        assert len(rows) >= 10 and assert_equal(rows, answers) <= 2
        assert engine is not SMALL or sum(answer["num_preemptions"] for answer in answers) >= 3


@pytest.mark.slow
def test_answers_equal_real_vllms() -> None:
    """The recording of vLLM 0.22.1 on this checkpoint; its rows with stop strings and `min_tokens` ask for more than
    this engine has."""
    golden = read_packed(GOLDEN / "vllm-pocket.json.xz")
    plain = [row for row in golden["answers"] if set(row["params"]) == {"max_tokens", "temperature", "logprobs"}]
    arrivals = [
        {"id": str(i), "messages": row["messages"],
         "params": {"max_tokens": row["params"]["max_tokens"], "temperature": row["params"]["temperature"]}}
        for i, row in enumerate(plain)
    ]  # fmt: skip
    [result] = node({"job": "run", "engine": golden["engine_args"] | {"num_blocks": 200}, "arrivals": {0: arrivals}})
    assert len(plain) >= 20 and all(row["params"]["temperature"] == 0 for row in plain)
    for i, row in enumerate(plain):
        answer = result["answers"][str(i)]
        assert [answer[key] for key in ("prompt_token_ids", "token_ids", "text", "finish_reason")] == [
            row[key] for key in ("prompt_token_ids", "token_ids", "text", "finish_reason")
        ]


def test_recorded_answers_are_mini_vllms(recorder: Any) -> None:
    assert [row["messages"] for row in recorded()["answers"]] == recorder.conversations()
    [fresh] = recorder.record([13])
    assert fresh["token_ids"] == recorded()["answers"][13]["token_ids"], "run python docs/engine-js/record.py"


SCENES = ("preemption", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chunked prefill", "prefix caching")))


@pytest.mark.parametrize("scene", SCENES)
def test_traces_equal_mini_vllms(scene: str) -> None:
    """The scheduler player's scenes: every field of every step, block ids and text included."""
    recorder = load("docs/widgets/record.py")
    theirs = json.loads((ROOT / "docs/widgets/data/scheduler.json").read_text(encoding="utf-8"))[scene]
    arrivals = {
        step: [{"id": i, "prompt": text, "params": {"max_tokens": n, "temperature": 0}} for i, text, n in rows]
        for step, rows in recorder.SCENES[scene]["arrivals"].items()
    }
    [ours] = node({"job": "run", "engine": recorder.SCENES[scene]["engine"], "arrivals": arrivals})
    assert ours["requests"] == theirs["requests"]
    assert ours["steps"] == theirs["steps"]


# --- the page's own doings: a pool that shrinks while requests run, a comparison in the reader's browser


def question(name: str, text: str, max_tokens: int = 64) -> dict[str, Any]:
    params = {"max_tokens": max_tokens, "temperature": 0}
    return {"ask": {"id": name, "messages": [{"role": "user", "content": text}], "params": params}}


def test_a_pool_that_shrinks_preempts_and_changes_no_word() -> None:
    both = [question("A", "What is a KV block?"), question("B", "What is preemption?")]
    engine = {"block_size": 8, "num_blocks": 33, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    calm, tight = node(
        {"job": "play", "engine": engine, "events": {0: both}},
        {"job": "play", "engine": engine, "events": {0: both, 12: [{"pool": 3}], 60: [{"pool": 32}]}},
    )
    assert not any(step["preempted"] for step in calm["steps"]) and calm["num_free"] == 32
    assert any(step["preempted"] == ["B"] for step in tight["steps"])
    assert tight["said"] == [10, 32], "13 + 64 - 1 tokens of A in blocks of 8: it could not end in fewer"
    assert max(len(step["withheld"]) for step in tight["steps"]) == 22 and tight["num_free"] == 32
    assert tight["texts"] == calm["texts"] and calm["texts"]["A"].startswith("A KV block is the unit")
    for step in tight["steps"]:
        held = {block for table in step["tables"].values() for block in table}
        assert len(held) + step["num_free"] + len(step["withheld"]) == 32
        assert not held & set(step["withheld"]) and not set(step["free"]) & set(step["withheld"])


def test_a_question_that_cannot_fit_is_refused_in_words() -> None:
    events = {0: [{"pool": 5}, question("A", "Hello!"), question("B", "Hello!", 20), question("C", "x " * 600)]}
    events[30] = [{"pool": 99}, question("D", "x " * 520)]
    [result] = node(
        {"job": "play", "engine": {"block_size": 8, "num_blocks": 100, "max_model_len": 512}, "events": events}
    )
    five, first, third, all_of_them, fourth = result["said"]
    assert five == 5 and "may need 9 blocks, and the pool has 5" in first and "blocks" in third
    assert all_of_them == 99 and fourth.startswith("a prompt must have 1 to 511 tokens, this one has")
    assert list(result["texts"]) == ["B"]


@pytest.mark.slow
def test_the_pages_examples_show_what_the_page_says() -> None:
    page = (ROOT / "docs/browser.md").read_text(encoding="utf-8")
    widget = (ROOT / "docs/widgets/engine.js").read_text(encoding="utf-8")
    worker = (ENGINE / "engine_worker.js").read_text(encoding="utf-8")
    system = {"role": "system", "content": re.search(r'SYSTEM = "(.*)"', widget)[1]}  # type: ignore[index]
    args = re.search(r"ARGS = {(.*)}", worker)[1]  # type: ignore[index]
    engine = {name: int(value) for name, value in re.findall(r"(\w+): (\d+)", args)}
    jobs = []
    for label in ("Two at once", "The same question twice", "Three in a pool of 16"):
        [(pool, texts)] = re.findall(rf'"{label}", (?:pool: (\d+), )?ask: (\[.*?\])', widget)
        asked = [question(name, text) for name, text in zip("ABC", json.loads(texts), strict=False)]
        for one in asked:
            one["ask"]["messages"].insert(0, system)
        jobs.append({"job": "play", "engine": engine, "events": {0: [{"pool": int(pool or 64)}, *asked]}})
    two, same, three = (result["steps"] for result in node(*jobs))
    turn = f"<|bos|><|system|>\n{system['content']}<|end|>\n"
    assert len(BPETokenizer.from_folder(POCKET).encode(turn, add_special_tokens=False)) == 17 and "of 17 tokens" in page
    assert two[0]["cached"] == {"A": 0, "B": 16} and two[0]["scheduled"] == {"A": 29, "B": 3}
    assert list(two[0]["sampled"]) == ["A"] and "B" in two[1]["sampled"]
    assert same[0]["cached"] == {"A": 0, "B": 24} and same[0]["counters"]["A"] == [28, 28] and "have 28 tokens" in page
    assert [name for step in three for name in step["preempted"]] == ["C", "B"]
    [back] = [step for step in three[45:] if {"B", "C"} <= set(step["scheduled"])][:1]
    found = {name: back["counters"][name][0] - back["scheduled"][name] for name in "BC"}
    assert found == {"B": 56, "C": 16} and not back["preempted"]


def test_an_example_begins_as_on_a_fresh_page() -> None:
    engine = {"block_size": 8, "num_blocks": 33, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    example = [{"forget": True}, {"pool": 12}, question("A", "Who are you?"), question("B", "Hello!")]
    earlier = {0: [question("X", "Who are you?"), {"pool": 15}], 3: [{"forget": True}]}
    fresh, again, warm = node(
        {"job": "play", "engine": engine, "events": {0: example}},
        {"job": "play", "engine": engine, "events": {**earlier, 90: example}},
        {"job": "play", "engine": engine, "events": {**earlier, 90: example[1:]}},
    )
    assert again["said"] == [15, False, True, 12], "nothing is forgotten while X runs"

    def plans(result: dict[str, Any]) -> list[Any]:
        mine = [step for step in result["steps"] if "X" not in step["scheduled"]]
        return [(step["scheduled"], step["cached"], step["preempted"], step["num_free"]) for step in mine]

    assert plans(fresh) == plans(again) != plans(warm)


def test_the_pages_comparison_counts_what_is_equal() -> None:
    rows = [dict(recorded()["answers"][i]) for i in (13, 27, 17, 21)]
    rows[1]["token_ids"] = [*rows[1]["token_ids"][:-1], 99]
    [found] = node({"job": "compare", "recorded": rows, "engine": {"max_num_seqs": 3}})
    assert found == {"equal": 3, "num_tokens": sum(len(row["token_ids"]) for row in rows)}


# --- tokenizer, template, sampler


def random_texts(count: int, seed: int) -> list[str]:
    """Unicode of all planes, white space of every kind, pieces of special tokens, prose of the course."""
    rng, assigned = random.Random(seed), [chr(c) for c in range(0x2FFFF)]
    assigned = [char for char in assigned if unicodedata.category(char) not in ("Cn", "Cs", "Co")]
    spaces = [char for char in assigned if char.isspace()] + [*"\u200b\ufeff\x1c\x85 \n", "  "]
    words = re.findall(
        r"\S+", "the What is a KV block's don't 12 3456 I'll 'S <|user|> <|end|> <| |> <|bos|><|x|> ½ ٣ Ⅷ"
    )
    prose = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")

    def text() -> str:
        kind, length = rng.randrange(4), rng.randint(0, 30)
        if kind == 0:
            return "".join(rng.choice(assigned) for _ in range(length))
        if kind == 1:
            return "".join(rng.choice([*words, *spaces, " "]) for _ in range(length))
        if kind == 2:
            start = rng.randrange(len(prose) - 200)
            return prose[start : start + 5 * length]
        return "".join(rng.choice([rng.choice(assigned), rng.choice(spaces), rng.choice(words)]) for _ in range(length))

    return [text() for _ in range(count)]


def test_tokenizer_equals_ours() -> None:
    tokenizer, texts, rng = BPETokenizer.from_folder(POCKET), random_texts(3000, seed=0), random.Random(1)
    lists = [[rng.randrange(4096) for _ in range(rng.randint(0, 20))] for _ in range(1000)]
    encoded, decoded = node({"job": "encode", "texts": texts}, {"job": "decode", "lists": lists})
    for text, ids in zip(texts, encoded, strict=True):
        assert ids == tokenizer.encode(text, add_special_tokens=False), repr(text)
    assert decoded == [tokenizer.decode(ids) for ids in lists]


def test_chat_template_equals_the_checkpoints() -> None:
    source = json.loads((POCKET / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    edges = ["", " ", "\n\t", "\u00a0", "\u3000", "\ufeff", "\x1c", "\x85", "\u200b"]
    roles = ("system", "user", "assistant", "user")
    chats = [[{"role": role, "content": f"{edge}one  two{edge}{edge}"} for role in roles] for edge in edges]
    [found] = node({"job": "template", "conversations": chats})
    assert found == [render(source, {"messages": chat, "add_generation_prompt": True}) for chat in chats]


def test_filters_of_the_sampler_equal_ours() -> None:
    rng, rows, wanted = np.random.default_rng(0), [], []
    for _ in range(60):
        logits = (rng.standard_normal(200) * rng.choice([0.5, 3, 8])).astype(np.float32)
        knobs = {
            "temperature": float(rng.choice([0.3, 0.7, 1.0, 1.6])),
            "top_k": int(rng.choice([0, 1, 5, 40, 300])),
            "top_p": float(rng.choice([0.1, 0.5, 0.9, 0.95, 1.0])),
        }
        row = SamplingRow(SamplingParams(**knobs), [], [], rng)
        metadata = SamplingMetadata.from_rows([row], logits.size)
        wanted.append(softmax(Sampler.apply_random_filters(logits[None].copy(), np.array([0]), metadata))[0])
        rows.append({"logits": logits.tolist(), **knobs})
    [found] = node({"job": "filter", "rows": rows})
    for ours, theirs, row in zip(found, wanted, rows, strict=True):
        assert [p > 0 for p in ours] == (theirs > 0).tolist(), row
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_draws_are_seeded_and_follow_the_distribution() -> None:
    probs = np.array([0.5, 0.25, 0.15, 0.1])
    job = {"job": "draw", "logits": np.log(probs).tolist(), "draws": 20_000}
    one, again, other, greedy = node(
        {**job, "params": {"seed": 1}}, {**job, "params": {"seed": 1}}, {**job, "params": {"seed": 2}},
        {**job, "params": {"seed": 1, "temperature": 0}, "draws": 5},
    )  # fmt: skip
    assert one == again != other and greedy == [0] * 5
    for draws in (one, other):
        np.testing.assert_allclose(np.bincount(draws, minlength=4) / len(draws), probs, atol=0.015)


# --- the house


def test_files_are_short_and_ask_nobody() -> None:
    """At most 300 lines of 120 characters, no package, no other server."""
    files = sorted(ENGINE.rglob("*.js"))
    assert len(files) >= 18
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= 300 and max(map(len, text.splitlines())) <= 120, file
        assert all(name.startswith(".") for name in re.findall(r'^import .* from "(.*)";$', text, re.M)), file
        assert "https:" not in text and "http:" not in text, file
    assert json.loads((ENGINE / "package.json").read_text(encoding="utf-8"))["type"] == "module"


def load(path: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorder() -> Any:
    return load("docs/engine-js/record.py")
