"""Lab 15-02: a capture of two GPUs, read with the learner's functions, and the same on numbers that can be checked."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
Row = given.Row
PLAIN = ("one", "two", "one-512", "two-512")
SINCE, UNTIL = 1.0, 12.0
KV_8B, MIB = 131_072, 1 << 20
LINE = (
    "(EngineCore pid=7) INFO 11-26 21:00:00 [metrics.py:103] KV Transfer metrics: Num successful transfers=3, Avg xfer "
    "time (ms)=1.518, P90 xfer time (ms)=2.0, Avg post time (ms)=0.4, P90 post time (ms)=0.5, Avg MB per "
    "transfer=23.812, Throughput (MB/s)=15687.2, Avg number of descriptors=3048.0"
)
"""As upstream's `KVConnectorLogging.log` and `NixlKVConnectorStats.reduce` write it; not a capture."""


def stream(*times, kind="stream", start=0.0, tokens=(5, 6, 7), key=0):
    return Row(kind, key, start, None, tuple(tokens), tuple(times))


# ---- the freight ----------------------------------------------------------------------------------------------------


def test_freight(impl):
    for tokens, size, each, mib in ((2031, 16, 12_288, 23.8125), (2031, 16, KV_8B, 254.0), (2032, 16, KV_8B, 254.0)):
        assert impl.expected_mib(tokens, size, each) == mib
    assert impl.expected_mib(33, 32, 8192) == 0.5, "two blocks of 32"
    assert impl.expected_mib(1, 16, KV_8B) == 2.0 and impl.expected_mib(64, 16, KV_8B) == 8.0


def test_freight_on_the_wire(impl):
    sizes = {size for _, size, _ in given.sent()}
    expected = {impl.expected_mib(tokens, 16, KV_8B) * MIB for tokens in (64, 2031)}
    assert sizes == expected, f"P sent {sizes}, you expect {expected}"


def test_read_a_line(impl):
    found = impl.parse_kv_transfer_metrics(LINE)
    assert found is not None and len(found) == 8
    assert found["Num successful transfers"] == 3.0 and found["Avg number of descriptors"] == 3048.0
    assert found["Avg MB per transfer"] == 23.812 and found["Throughput (MB/s)"] == 15687.2
    assert impl.parse_kv_transfer_metrics(LINE + "\n") == found
    small = impl.parse_kv_transfer_metrics("KV Transfer metrics: Num successful transfers=1, Avg MB per transfer=1e-05")
    assert small == {"Num successful transfers": 1.0, "Avg MB per transfer": 1e-05}
    for side in given.facts()["logs"].values():
        assert [impl.parse_kv_transfer_metrics(line) for line in side] == [None] * len(side)


# ---- what users saw -------------------------------------------------------------------------------------------------


def test_gaps_of_streams(impl):
    rows = [stream(0.5, 1.0, 1.25, 1.85), stream(1.0, 1.5, kind="long")]
    found = impl.summary(rows, 1.0, 1.85)
    assert math.isnan(found["stream_ttft_p50_ms"]), "no stream began in this time"
    assert found["itl_p50_ms"] == pytest.approx(250) and found["itl_p99_ms"] == pytest.approx(500), (
        f"{found}: the gaps that ended in this time are 500 and 250 ms; one ended with it, one is a document's"
    )


def test_first_tokens(impl):
    rows = [stream(0.9, 1.4, start=0.2), stream(1.6, start=1.1), stream(1.9, start=1.5, kind="long"), stream(start=1.2)]
    found = impl.summary(rows, 0.0, 2.0)
    assert found["stream_ttft_p50_ms"] == pytest.approx(500) and found["long_ttft_p50_ms"] == pytest.approx(400)
    rows += [stream(1.2, 1.3, start=0.4), stream(1.0, 1.1, start=0.5)]
    assert impl.summary(rows, 0.3, 2.0)["stream_ttft_p50_ms"] == pytest.approx(500), "one began before this time"


def test_who_began_in_this_time(impl):
    rows = [stream(2.5, start=1.0), stream(2.1, start=2.0), stream(2.3, start=2.0, kind="long")]
    found = impl.summary(rows, 1.0, 2.0)
    assert found["stream_ttft_p50_ms"] == pytest.approx(1500), "it began in this time, and its token came later"
    assert math.isnan(found["long_ttft_p50_ms"]), "2.0 is not before 2.0"


def test_a_summary_of_nothing(impl):
    found = impl.summary([], 0.0, 1.0)
    assert found.pop("tokens_per_s") == 0.0 and len(found) == 4, f"{found}"
    assert all(math.isnan(value) for value in found.values()), f"{found}: there is no gap and no first token"


def test_tokens_count_whoever_gets_them(impl):
    rows = [stream(0.5, 1.0, 1.25, 1.75), stream(1.0, 1.5, start=1.0, kind="long"), stream(1.1, start=1.0)]
    assert impl.summary(rows, 1.0, 1.5)["tokens_per_s"] == 8.0, "1.0, 1.25, 1.0 and 1.1 in half a second"


def test_a_hundredth(impl):
    gaps = [0.01] * 99 + [1.0]
    rows = [stream(*(sum(gaps[:n]) for n in range(101))), stream(0.1, 0.2, kind="long")]
    assert impl.summary(rows, 0.0, 9.0)["itl_p99_ms"] == pytest.approx(10), "99 of 100 do not exceed 10 ms"
    rows[0] = stream(*(sum(([*gaps[1:], 1.0])[:n]) for n in range(101)))
    assert impl.summary(rows, 0.0, 9.0)["itl_p99_ms"] == pytest.approx(1000), "98 do, and that is not enough"


@pytest.mark.parametrize("name", ["pair", *PLAIN])
def test_the_capture(impl, name):
    """What gpu_run.py computed from all times, when it ran."""
    found, said = impl.summary(given.arm(name), SINCE, UNTIL), given.facts()["arms"][name]
    assert found["itl_p50_ms"] == pytest.approx(said["itl_ms"]["p50"], rel=0.01)
    assert found["itl_p99_ms"] == pytest.approx(said["itl_ms"]["p99"], rel=0.03)
    assert found["tokens_per_s"] == pytest.approx(said["tokens_per_s"], rel=0.01)
    assert found["long_ttft_p50_ms"] == pytest.approx(said["long"]["ttft_ms"]["p50"], rel=0.03)


def test_compare(impl):
    single = {"long_ttft_p50_ms": 200.0, "itl_p50_ms": 10.0, "itl_p99_ms": 40.0, "tokens_per_s": 1.0}
    pair = {"long_ttft_p50_ms": 220.0, "itl_p50_ms": 9.0, "itl_p99_ms": 10.0, "tokens_per_s": 2.0}
    kept = dict(single), dict(pair)
    assert impl.compare(single, pair) == {"ttft_ratio": 1.1, "itl_p50_ratio": 0.9, "itl_p99_ratio": 0.25}
    assert (single, pair) == kept, "the summaries stay the caller's"


def test_your_prediction(impl):
    predicted = impl.predicted_verdicts()
    pair, two = (impl.summary(given.arm(name), SINCE, UNTIL) for name in ("pair", "two"))
    ratios = [pair[n] / two[n] for n in ("itl_p50_ms", "itl_p99_ms", "long_ttft_p50_ms", "stream_ttft_p50_ms")]
    ratios.append(two["tokens_per_s"] / pair["tokens_per_s"])
    found = tuple("pair" if ratio < 1 / 1.05 else "two" if ratio > 1.05 else "even" for ratio in ratios)
    assert tuple(predicted) == found, f"got {predicted} from you, expected {found}"


# ---- the wire -------------------------------------------------------------------------------------------------------


def test_a_wire(impl):
    sent = [(32, size, 32 * 2e-4 + size / 5e9) for size in (8_000_000, 250_000_000) for _ in range(9)]
    kept = list(sent)
    latency, rate = impl.fit_wire(sent)
    assert sent == kept, "the transfers stay the caller's"
    assert latency == pytest.approx(2e-4) and rate == pytest.approx(5e9)
    latency, rate = impl.fit_wire([(4, 100, 4.1), (4, 300, 4.3)])
    assert latency == pytest.approx(1.0) and rate == pytest.approx(1000)


def test_one_connection_is_no_wire(impl):
    sent = [(32, size, 32 * 2e-4 + size / 5e9) for size in (8_000_000, 250_000_000) for _ in range(9)]
    sent[0], sent[12] = (32, 8_000_000, 0.536), (32, 250_000_000, 0.2)
    latency, rate = impl.fit_wire(sent)
    assert latency == pytest.approx(2e-4, rel=0.02) and rate == pytest.approx(5e9, rel=0.02), (
        f"got {latency:.2e} s and {rate:.3g} B/s: two of 18 were slow for another reason"
    )


def test_one_size_tells_nothing(impl):
    with pytest.raises(ValueError, match="one size alone cannot tell latency from bandwidth"):
        impl.fit_wire([(32, 100, 0.1), (32, 100, 0.2)])


def test_the_captured_wire(impl):
    latency, rate = impl.fit_wire(given.sent())
    assert 2.5e-4 < latency < 3.5e-4, f"got {latency * 1e6:.0f} us a tensor"
    assert 13e9 < rate < 18e9, f"got {rate / 1e9:.1f} GB/s beyond that, on a link that does 262"


# ---- are they the same tokens? --------------------------------------------------------------------------------------


def test_partings(impl):
    a = [stream(tokens=(1, 2, 3), key=0), stream(tokens=(1, 2), key=1), stream(tokens=(9, 2, 3), key=2)]
    b = [stream(tokens=(1, 2, 4), key=0), stream(tokens=(1, 2, 5), key=1), stream(tokens=(8, 2, 3), key=2)]
    a += [stream(tokens=(1,), key=3), stream(tokens=(), key=4), stream(tokens=(7, 7), key=5, kind="long")]
    b += [
        stream(tokens=(1,), key=4),
        stream(tokens=(7, 7), key=5, kind="long"),
        stream(tokens=(7,), key=3, kind="long"),
    ]
    assert impl.partings(a, b) == {"requests": 4, "at_first": 1, "parted": 2, "agreed": 2 + 2 + 0 + 2}
    assert impl.partings(a, list(reversed(b))) == impl.partings(b, a), "by kind and key, in whatever order"


def test_two_engines_part_without_any_transfer(impl):
    found = impl.partings(given.arm("one"), given.arm("two"))
    rate = found["parted"] / (found["parted"] + found["agreed"])
    assert found["at_first"] == 0 and 0.03 < rate < 0.06, f"{found}: one token in {1 / rate:.0f}"


def spoiled(rows, share, seed):
    """The arm, as if so many of its requests had been given wrong keys and values."""
    rng = random.Random(seed)
    wrong = lambda row: replace(row, tokens=tuple(rng.randrange(128_256) for _ in row.tokens))  # noqa: E731
    return [wrong(row) if rng.random() < share else row for row in rows]


def test_the_pair_is_not_suspect(impl):
    plain = [given.arm(name) for name in PLAIN]
    assert impl.transfers_are_suspect(given.arm("pair"), plain) is False
    assert impl.transfers_are_suspect(given.arm("pair"), plain[:2]) is False
    assert plain == [given.arm(name) for name in PLAIN], "the arms stay the caller's"
    for place, rows in enumerate(plain):
        others = plain[:place] + plain[place + 1 :]
        assert impl.transfers_are_suspect(rows, others) is False, f"{PLAIN[place]} transfers nothing"


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3])
def test_wrong_keys_and_values_are_seen(impl, share):
    plain = [given.arm(name) for name in PLAIN]
    found = [impl.transfers_are_suspect(spoiled(given.arm("pair"), share, seed), plain) for seed in range(5)]
    assert found == [True] * 5, f"of five captures with {share:.0%} of the requests spoiled"


@pytest.mark.parametrize("kind", ["stream", "long"])
def test_wrong_keys_and_values_of_one_kind(impl, kind):
    plain, pair = [given.arm(name) for name in PLAIN], given.arm("pair")
    wrong = iter(spoiled([row for row in pair if row.kind == kind], 1.0, 0))
    mixed = [next(wrong) if row.kind == kind else row for row in pair]
    assert impl.transfers_are_suspect(mixed, plain) is True, f"all of kind {kind} were spoiled, and no other"


# ---- our engine, on two cores ---------------------------------------------------------------------------------------


def test_our_pair(impl):
    """cpu_run.py: float32 and one thread, so that the tokens are the same to the last one."""
    plain = [given.arm(name, "cpu") for name in ("one", "two")]
    for rows in plain:
        found = impl.partings(given.arm("pair", "cpu"), rows)
        assert found["requests"] > 15 and found["at_first"] == found["parted"] == 0, f"{found}"
    assert impl.transfers_are_suspect(given.arm("pair", "cpu"), plain) is False
