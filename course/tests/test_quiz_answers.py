"""The numbers in the scored self-checks, computed again: by the engine where it can, by arithmetic elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from course.labs import ROOT, tomllib
from mini_vllm import (
    CUDAGraphMode,
    ForwardLaunches,
    KVCacheManager,
    LLMEngine,
    Request,
    SamplingParams,
    decode_e4m3,
    default_capture_sizes,
    get_request_block_hasher,
    moe_align_block_size,
    pad_to_capture_size,
)
from mini_vllm.engine.dp_core_proc import STEPS_BETWEEN_SYNCS
from mini_vllm.spec_decode.ngram_proposer import find_longest_matched_ngram_and_propose_tokens

pytestmark = pytest.mark.maintainer


def right(section: str) -> str:
    """The right option of the last question of a section; a section by its number, as 2.11."""
    phase, _ = section.split(".")
    [path] = ROOT.glob(f"phase-{int(phase):02}-*/quiz.toml")
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["question"]
    row = [row for row in rows if row["section"].split("-")[0] == section.replace(".", "")][-1]
    return str(row["options"][row["answer"]])


def request(name: str, tokens: list[int], size: int) -> Request:
    return Request(name, tokens, SamplingParams(), block_hasher=get_request_block_hasher(size))


def serve(manager: KVCacheManager, name: str, tokens: list[int], size: int) -> int:
    """Prefills a request and ends it. Returns the tokens that it found."""
    one = request(name, tokens, size)
    hits, cached = manager.get_computed_blocks(one)
    assert manager.allocate_slots(one, len(tokens) - cached, cached, hits) is not None
    one.num_computed_tokens = len(tokens)
    manager.free(one)
    return cached


def engine(prompts: list[str], lengths: list[int], **config: Any) -> LLMEngine:
    made = LLMEngine(**config)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        made.add_request("ABCDE"[i], prompt, params)
    return made


def steps(made: LLMEngine) -> int:
    """Steps until all is done."""
    count = 0
    while made.has_unfinished_requests():
        made.step()
        count += 1
    return count


def test_phases_00_and_01() -> None:
    pieces = list("tokentaken")
    for first, second in (("e", "n"), ("k", "en"), ("t", "o"), ("to", "ken"), ("token", "s")):
        joined: list[str] = []
        for piece in pieces:
            if joined and (joined[-1], piece) == (first, second):
                joined[-1] += piece
            else:
                joined.append(piece)
        pieces = joined
    assert right("0.3") == str(len(pieces))
    assert right("0.9") == f"{4 + 5 + 6} and {4 + 3 - 1}"
    assert right("0.11") == str(8 * 2**30 // (4000 * 2**16))
    assert right("0.12") == f"{60 / 0.040:,.0f} tokens/s"
    assert right("1.2") == str(2 * (10 + 6) - (10 + 4 + 6 + 2))
    assert right("1.9") == f"by {max(4, 6) - max(4, 3)} units"
    long = engine(["x" * 20], [5], max_num_batched_tokens=8, max_num_seqs=1)
    assert right("1.10") == f"{steps(long)} steps and {20 + 5 - 1}"


def test_phase_02() -> None:
    story = KVCacheManager(num_blocks=10, block_size=4)
    prompt = list(range(100, 132))
    a, b = request("a", prompt, 4), request("b", prompt, 4)
    for one in (a, b):
        hits, cached = story.get_computed_blocks(one)
        story.allocate_slots(one, 32 - cached, cached, hits)
        one.num_computed_tokens = 32
    for one in (a, b):
        story.free(one)
    for name, tokens in (("e", range(8)), ("d", prompt), ("f", range(50, 62))):
        serve(story, name, list(tokens), 4)
    assert right("2.11") == str(serve(story, "later", prompt, 4))
    pool = KVCacheManager(num_blocks=30, block_size=16)
    serve(pool, "first", list(range(64)), 16)
    assert right("2.7") == str(serve(pool, "second", [*range(19), 999, *range(20, 64)], 16))
    assert right("2.13") == f"{124_739 + (124_739 - 99_289):,}"
    assert right("2.14") == f"{100 * (63 - 15):,}"


def test_phase_03() -> None:
    assert right("3.3") == f"{6 + 4} and {steps(engine(['x'] * 5, [2, 2, 6, 4, 4], max_num_seqs=3))}"
    together = engine(["x" * 40] * 3, [2] * 3, block_size=16, num_blocks=64)
    assert right("3.5") == str(together.scheduler.schedule().total_num_scheduled_tokens)
    tight = engine(["x" * 11], [4], block_size=4, num_blocks=9, max_num_batched_tokens=8)
    tight.step()
    for name, asked in (("B", "y" * 24), ("C", "zz")):
        tight.add_request(name, asked, SamplingParams(max_tokens=1))
    assert right("3.7") == str(tight.scheduler.schedule().num_scheduled_tokens).replace("'", "").join("``")
    full = engine(["x"] * 4 + ["y" * 9], [9] * 5, max_num_batched_tokens=12, max_num_seqs=4)
    full.step()
    assert right("3.8") == str(full.scheduler.schedule().total_num_scheduled_tokens)
    share = {"max_num_batched_tokens": 614, "long_prefill_token_threshold": 150}  # all by 10 / 3
    assert right("3.11") == f"in step {steps(engine(['x' * 1800], [1], num_blocks=600, **share))}"


def test_phases_04_and_05() -> None:
    assert right("4.5") == str(sum(8 * (group + 1) // 4 for group in range(16 // 8)))
    assert right("4.6") == f"{(1 * 4 + 3 * 0) / (1 + 3):.0f}"
    assert right("4.10") == f"{(256 + 64) * 2 * 40:,}"
    assert right("5.3") == str((pad_to_capture_size(260, default_capture_sizes(512)) or 0) - 260)
    replays, launches = map(int, right("5.5").split(" and "))
    assert replays == 24 + 1 and replays + launches == ForwardLaunches(24).in_mode(CUDAGraphMode.PIECEWISE)


def test_phases_06_and_07() -> None:
    values = decode_e4m3(np.arange(256, dtype=np.uint8))
    assert right("6.4") == str(values[np.nanargmin(np.abs(values - 5.3))])
    assert right("6.8") == f"{math.sqrt(32 / 0.5):.0f}"
    assert abs(float(right("6.10").removesuffix(" MB")) - (6.6 - 4.2 + 4.2 / 4)) < 0.06
    assert right("6.11") == f"about {100 * 0.985**100:.0f} %"
    parts = 2 * (4096 * 48 * 128 + 4096 * 4096), 4 * 32 * 128 * 8192, 2 * 3 * 4096 * 14336
    assert right("7.1") == f"{100 * parts[1] / sum(parts):.0f} %"
    assert right("7.5") == f"{math.e / (2 * math.e + 14):.2f}"
    experts = np.repeat([0, 2, 3, 4], [1, 17, 16, 3])[:, None]
    assert right("7.6") == str(moe_align_block_size(experts, 16, 5)[2])
    assert right("7.7") == f"{48 * 40 * 2:,} and {48 * 2}"
    assert right("7.9") == f"{100 * (60 + 3 * 20) / (4 * 60):.0f} %"
    assert right("7.10") == f"{2 / (1 / 4 + 1 / 128):.0f}"


def test_phases_08_09_and_12() -> None:
    assert right("8.2") == str(206 // 50 - 1)
    drafts = find_longest_matched_ngram_and_propose_tokens(np.array([7, 8, 1, 7, 8, 2, 7, 8]), 2, 2, 1000, 3)
    assert right("8.4") == str(drafts[0])
    assert right("8.7") == f"{2.4 / (2.0 + 0.4)}"
    assert right("8.10") == f"{sum(map(min, (0.5, 0.3, 0.2), (0.2, 0.3, 0.5))):.1f} of the time"
    assert right("9.1") == f"{100 * 0.99**10:.0f} %"
    kept = np.array([p for p in (0.6, 0.25, 0.15) if p >= 0.3 * 0.6])
    assert right("9.3") == ("one", "two")[int(kept[0] / kept.sum() < 0.7)]
    assert right("9.4") == f"{2.5 / 1.25:.0f} and −{2 * 1.25}"
    assert right("9.10") == f"about {100 * (1 - 0.999**1000):.0f} %"
    pairs = {"A C": 0.6 * 0.51, "A D": 0.6 * 0.49, "B C": 0.4 * 0.7, "B D": 0.4 * 0.3}
    assert right("9.12") == max(pairs, key=lambda pair: pairs[pair])
    assert right("12.8") == f"by about {100 * 0.130 - 10:.0f} ms"


def test_phase_10() -> None:
    parts = np.array([[3, 1], [2, 5]])
    assert right("10.2") == str(parts.sum(axis=0).tolist())
    assert right("10.3") == str(2 * 24 + 1)
    ranks, payload = 4, 8
    assert right("10.4") == f"{2 * (ranks - 1)} steps, {2 * (ranks - 1) * payload // ranks} MiB"
    heads = [max(1, 4 // tp) for tp in (1, 2, 4, 8)]
    assert right("10.5") == str(1 << heads.index(1))
    assert right("10.6") == {0.25: "a quarter of the time"}[min(1, 1 / 4)]
    assert right("10.7") == min({"A": 4 * 1 + 4, "B": 4 * 0 + 7}.items(), key=lambda one: one[1])[0]
    assert right("10.8") == str(-(-33 // STEPS_BETWEEN_SYNCS) * STEPS_BETWEEN_SYNCS)
    assert right("10.9") == str(4 * 2 - 4)
