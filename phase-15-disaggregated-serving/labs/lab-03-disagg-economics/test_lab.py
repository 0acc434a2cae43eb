"""Lab 15-03: both ledgers, on numbers that are worked out in the README, on a capture, and on a simulated day."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from course.labs import load
from mini_vllm import kv_bytes_per_token

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
CAPTURE = HERE.parents[2] / "phase-10-distributed-inference" / "labs" / "lab-02-two-way-tp" / "capture.json.xz"
KV_8B, KV_70B = 131_072, 327_680
LLAMA = {"parameters": 8.03e9, "layers": 32, "hidden": 4096}
DECODE, CHUNK, PREFILL = 0.010, 0.025, 0.205
MIB = 1 << 20


# ---- the freight and the wire ---------------------------------------------------------------------------------------


def test_freight(impl):
    assert impl.kv_payload_bytes(2048, KV_8B) == 256 * MIB
    assert impl.kv_payload_bytes(1, 12_288) == 12_288
    assert impl.kv_payload_bytes(2048, KV_70B) / impl.kv_payload_bytes(2048, KV_8B) == 2.5
    assert isinstance(impl.kv_payload_bytes(3, 5), int)


def test_freight_is_what_the_engine_holds(impl):
    for layers, heads, size in ((32, 8, KV_8B), (80, 8, KV_70B), (24, 2, 24_576)):
        assert impl.kv_payload_bytes(7, size) == 7 * kv_bytes_per_token(layers * heads, 128, itemsize=2)


def test_links_are_sold_in_bits(impl):
    for gbps, ms in ((200, 10.737), (100, 21.475), (25, 85.899), (10, 214.748)):
        found = impl.transfer_seconds(256 * MIB, gbps) * 1e3
        assert found == pytest.approx(ms, rel=1e-4), f"{gbps} Gb/s: got {found:.3f} ms, expected {ms} ms"


def test_latency_is_paid_once(impl):
    assert impl.transfer_seconds(0, 200, 0.003) == 0.003
    assert impl.transfer_seconds(25_000_000, 1, 0.5) == pytest.approx(0.7)


def test_bad_numbers(impl):
    for call, match in (
        (lambda: impl.kv_payload_bytes(0, 5), "prompt_tokens must be at least 1, got 0"),
        (lambda: impl.kv_payload_bytes(5, 0), "kv_bytes_per_token must be at least 1, got 0"),
        (lambda: impl.transfer_seconds(5, 0), "link_gbps must be positive, got 0"),
        (lambda: impl.transfer_seconds(5, -1), "link_gbps must be positive, got -1"),
        (lambda: impl.disagg_ttft_penalty(0.1, 0), "prefill_s must be positive, got 0"),
        (lambda: impl.kv_payload_bytes(-3, 5), "prompt_tokens must be at least 1, got -3"),
        (lambda: impl.kv_payload_bytes(5, -3), "kv_bytes_per_token must be at least 1, got -3"),
        (lambda: impl.disagg_ttft_penalty(0.1, -0.2), "prefill_s must be positive, got -0.2"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


# ---- the prompt -----------------------------------------------------------------------------------------------------


def test_operations_of_a_prompt(impl):
    assert impl.prefill_seconds(1, 10, 3, 5, 1.0) == 20 + 4 * 3 * 5
    assert impl.prefill_seconds(4, 10, 3, 5, 2.0) == (80 + 60 * 10) / 2
    found = impl.prefill_seconds(2048, **LLAMA, flops_per_s=1.66e14)
    assert found == pytest.approx(0.205, abs=0.0005), f"got {found:.4f} s, expected 0.205 s"


def test_the_card_that_was_measured(impl):
    """Two H100s ran this shape for lab 10-02: 2,047 tokens in 52 ms."""
    arm = json.loads(lzma.decompress(CAPTURE.read_bytes()))["arms"]["llama-1"]["found"]
    measured = arm["prefill_2047_ms"] / 1e3
    rate = impl.prefill_seconds(2047, **LLAMA, flops_per_s=1.0) / measured
    assert 0.5e15 < rate < 0.989e15, f"got {rate:.3g} operations a second: more than half, and less than all it can do"
    payload = impl.kv_payload_bytes(2047, KV_8B)
    fast, slow = (impl.disagg_ttft_penalty(impl.transfer_seconds(payload, 200), s) for s in (measured, PREFILL))
    assert 3.8 < fast / slow < 4.0, (
        f"got {fast / slow:.2f}: the quicker card makes the same wire about 3.9 times dearer"
    )


def test_your_prediction(impl):
    predicted = impl.predicted_long_prompt()
    tolls = [
        impl.disagg_ttft_penalty(
            impl.transfer_seconds(impl.kv_payload_bytes(tokens, KV_8B), 200),
            impl.prefill_seconds(tokens, **LLAMA, flops_per_s=1.66e14),
        )
        for tokens in (2048, 32768)
    ]
    found = tolls[1] / tolls[0]
    assert abs(predicted - found) <= 0.1, f"got {predicted} from you, expected {found:.3f}"


# ---- the two ledgers ------------------------------------------------------------------------------------------------


def test_the_worst_gap(impl):
    assert impl.colocated_itl_worst(DECODE, CHUNK) == pytest.approx(0.035)
    assert impl.colocated_itl_worst(0.0066, 0.0521) == pytest.approx(0.0587)


def test_the_toll(impl):
    fast, slow = (impl.transfer_seconds(256 * MIB, gbps) for gbps in (200, 10))
    assert impl.disagg_ttft_penalty(fast, PREFILL) == pytest.approx(0.0524, abs=1e-4)
    assert impl.disagg_ttft_penalty(slow, PREFILL) == pytest.approx(1.0476, abs=1e-4)


def test_both_ledgers_count(impl):
    fast, slow = (impl.transfer_seconds(256 * MIB, gbps) for gbps in (200, 10))
    assert impl.disagg_wins(DECODE, CHUNK, fast, PREFILL) is True
    assert impl.disagg_wins(DECODE, CHUNK, slow, PREFILL) is False, "the toll is 105 %"
    assert impl.disagg_wins(DECODE, 0.001, fast, PREFILL) is False, "the gap shrinks by a tenth only"
    assert impl.disagg_wins(0.100, CHUNK, fast, PREFILL) is False, "a chunk of 25 ms in a step of 100 ms"
    assert impl.disagg_wins(0.002, 0.0012, fast, PREFILL) is True, "a small chunk in a small step: a gain of 1.6"
    assert impl.disagg_wins(DECODE, CHUNK, 0.3 * PREFILL, PREFILL) is False, "a toll of 30 %, where a quarter is meant"


def test_the_limits_are_the_askers(impl):
    transfer = impl.transfer_seconds(256 * MIB, 25)  # a toll of 0.419, a gain of 3.5
    assert impl.disagg_wins(DECODE, CHUNK, transfer, PREFILL, max_ttft_penalty=0.42) is True
    assert impl.disagg_wins(DECODE, CHUNK, transfer, PREFILL, max_ttft_penalty=0.41) is False
    assert impl.disagg_wins(DECODE, CHUNK, transfer, PREFILL, 3.4, 0.42) is True
    assert impl.disagg_wins(DECODE, CHUNK, transfer, PREFILL, 3.6, 0.42) is False
    assert impl.disagg_wins(DECODE, CHUNK, 0.04 * PREFILL, PREFILL, max_ttft_penalty=0.03) is False
    assert impl.disagg_wins(0.5, 0.25, 0.25, 1.0) is True, "what is met exactly is met"


def test_the_slowest_link(impl):
    assert impl.min_link_gbps(256 * MIB, PREFILL) == pytest.approx(41.9, abs=0.05)
    assert impl.min_link_gbps(256 * MIB, 0.0521, 0.1) == pytest.approx(412.2, abs=0.5)
    for penalty, size in ((0.06, 256 * MIB), (0.25, MIB), (1.0, 640 * MIB)):
        link = impl.min_link_gbps(size, PREFILL, penalty)
        found = impl.disagg_ttft_penalty(impl.transfer_seconds(size, link), PREFILL)
        assert found == pytest.approx(penalty), f"got a toll of {found:.4f} on the link that shall have {penalty}"


def test_what_has_to_hide(impl):
    transfer = impl.transfer_seconds(256 * MIB, 25)
    assert impl.overlap_needed(transfer, PREFILL, 0.06) == pytest.approx(0.857, abs=5e-4)
    assert impl.overlap_needed(transfer, PREFILL, 0.5) == 0.0, "nothing has to hide where the toll is low enough"
    assert impl.overlap_needed(transfer, PREFILL, 0.0) == 1.0
    assert impl.overlap_needed(1.0, 0.5, 0.5) == 0.75 and impl.overlap_needed(0.5, 0.5, 0.5) == 0.5


# ---- your rule ------------------------------------------------------------------------------------------------------


@pytest.mark.provided
def test_the_simulation_can_tell():
    assert given.goodput(lambda tokens, waiting: False) < 0.10
    assert 0.65 < given.goodput(lambda tokens, waiting: True) < 0.75
    best = max(given.replicas(2, chunk) for chunk in (40, 60, 100))
    assert 0.4 < best < 0.5, "two engines that do both, with the chunk that suits them best"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_your_rule(impl, seed):
    found = given.goodput(impl.moves, given.workload(seed=seed))
    assert found >= 0.9, f"{found:.1%} of the requests have both promises kept"


@pytest.mark.parametrize(("question", "document"), [(60, 1200), (80, 1800)])
def test_your_rule_on_other_lengths(impl, question, document):
    """The same days with other prompts: a rule that knows 60 and 2,000 by heart is none."""
    requests = given.workload(seed=4)
    for asked in requests:
        asked.prompt_tokens = question if asked.prompt_tokens == 60 else document
    found = given.goodput(impl.moves, requests)
    assert found >= 0.9, f"{found:.1%} of the requests, with questions of {question} and documents of {document} tokens"


def test_your_rule_uses_both(impl):
    asked = {impl.moves(tokens, waiting) for tokens in (60, 2000) for waiting in (0.0, 0.1, 0.5)}
    assert asked == {True, False}, f"got {asked}: somebody moves, and somebody stays"
