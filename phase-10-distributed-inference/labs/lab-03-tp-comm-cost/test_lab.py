"""Lab 10-03: the wire of tensor parallelism, by formulas, by their limits, and from measurements."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import pytest

# an 8B model in float16: 32 layers, hidden 4,096; a decode step takes 8 ms on one device (lab 00-04)
LAYERS, HIDDEN, STEP_S = 32, 4096, 8e-3
NVLINK, PCIE, ETHERNET = (300e9, 3e-6), (25e9, 10e-6), (1.25e9, 50e-6)
CAPTURE = Path(__file__).resolve().parent.parent / "lab-02-two-way-tp" / "capture.json.xz"


def step_ms(impl, tokens, ranks, link, **more):
    return 1e3 * impl.tp_comm_time_per_step(LAYERS, tokens, HIDDEN, ranks, *link, **more)


def near(found, wanted, what, rel=1e-3):
    assert found == pytest.approx(wanted, rel=rel), f"{what}: got {found:.6g}, expected {wanted:.6g}"


# ---- one all-reduce ------------------------------------------------------------------------------------------------


def test_payload_is_one_activation_row_per_token(impl):
    assert impl.allreduce_payload_bytes(1, 4096) == 8192, "one token of 4,096 numbers of 2 bytes"
    assert impl.allreduce_payload_bytes(2048, 4096) == 16 * 2**20, "a prefill of 2,048: 16 MiB"
    assert impl.allreduce_payload_bytes(3, 256, 4) == 3072 and impl.allreduce_payload_bytes(0, 256) == 0


def test_ring_traffic_formula(impl):
    for ranks, wanted in ((1, 0), (2, 1000), (4, 1500), (8, 1750), (1000, 1998)):
        near(impl.ring_allreduce_traffic_per_rank(1000, ranks), wanted, f"1,000 bytes on {ranks} ranks", 1e-9)
    near(impl.ring_allreduce_traffic_per_rank(10, 3), 40 / 3, "10 bytes on 3 ranks, not rounded", 1e-9)
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=rf"^num_ranks must be at least 1, got {wrong}$"):
            impl.ring_allreduce_traffic_per_rank(1000, wrong)


@pytest.mark.parametrize(
    ("payload", "ranks", "link", "wanted_us"),
    [
        (8192, 2, NVLINK, 6.0273),
        (8192, 8, NVLINK, 42.0478),
        (8192, 2, ETHERNET, 106.5536),
        (16 * 2**20, 2, NVLINK, 61.924),
        (16 * 2**20, 4, ETHERNET, 20432.66),
        (0, 4, PCIE, 60.0),
        (8192, 1, ETHERNET, 0.0),
    ],
)
def test_time_is_bytes_and_hops(impl, payload, ranks, link, wanted_us):
    found = 1e6 * impl.allreduce_time_s(payload, ranks, *link)
    assert found == pytest.approx(wanted_us, rel=1e-4, abs=1e-12), (
        f"{payload:,} bytes on {ranks} ranks: got {found:.4f} µs, expected {wanted_us}"
    )


def test_doors(impl):
    for bandwidth in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=rf"^bandwidth_Bps must be above 0, got {bandwidth}$"):
            impl.allreduce_time_s(8192, 2, bandwidth, 1e-6)
        with pytest.raises(ValueError, match=rf"^bandwidth_Bps must be above 0, got {bandwidth}$"):
            impl.allreduce_time_s(8192, 1, bandwidth, 1e-6)  # who is alone sends nothing; the argument is wrong anyway
    with pytest.raises(ValueError, match=r"^num_ranks must be at least 1, got 0$"):
        impl.allreduce_time_s(8192, 0, 1e9, 1e-6)
    assert impl.allreduce_time_s(8, 2, 0.5, 0.0) == 16, "half a byte a second is slow, and no fault"
    assert impl.allreduce_time_s(10**9, 2, float("inf"), 1e-6) == pytest.approx(2e-6), "no bytes, two hops"


# ---- a step --------------------------------------------------------------------------------------------------------


def test_decode_step_comm_on_nvlink_is_noise(impl):
    comm = step_ms(impl, 1, 2, NVLINK)
    near(comm, 0.3857, "64 all-reduces of 8 KB on two ranks, ms")
    assert comm < 1 and impl.comm_fraction(comm, 8) < 0.1
    near(impl.comm_fraction(comm, 4), 0.0880, "beside half of the 8 ms, which is what each of two ranks computes")


def test_decode_step_comm_on_ethernet_is_fatal(impl):
    comm = step_ms(impl, 1, 2, ETHERNET)
    near(comm, 6.8194, "64 all-reduces of 8 KB on two ranks, ms")
    assert impl.comm_fraction(comm, 8) > 0.4 and impl.comm_fraction(comm, 4) > 0.6


def test_fraction(impl):
    assert impl.comm_fraction(1, 3) == 0.25 and impl.comm_fraction(0, 5) == 0 and impl.comm_fraction(0.0, 0.0) == 0
    assert impl.comm_fraction(2, 0) == 1


def test_latency_dominates_small_payloads(impl):
    base = step_ms(impl, 1, 2, NVLINK)
    near(step_ms(impl, 1, 2, (NVLINK[0], NVLINK[1] / 2)) / base, 0.502, "decode with half the latency")
    near(step_ms(impl, 1, 2, (NVLINK[0] * 2, NVLINK[1])) / base, 0.998, "decode with twice the bandwidth")


def test_prefill_payloads_shift_the_balance_to_bandwidth(impl):
    base = step_ms(impl, 2048, 2, ETHERNET)
    near(base, 865.4, "a prefill of 2,048 tokens over Ethernet, ms")
    near(step_ms(impl, 2048, 2, (ETHERNET[0], ETHERNET[1] / 2)) / base, 0.996, "prefill with half the latency")
    near(step_ms(impl, 2048, 2, (ETHERNET[0] * 2, ETHERNET[1])) / base, 0.504, "prefill with twice the bandwidth")
    near(step_ms(impl, 2048, 2, NVLINK), 3.963, "the same prefill over NVLink, ms")


def test_more_ranks_more_overhead(impl):
    times = [step_ms(impl, 1, ranks, NVLINK) for ranks in (1, 2, 4, 8)]
    assert times == sorted(times) and times[0] == 0, f"by ranks 1, 2, 4, 8: {times}"
    near(times[3], 2.691, "64 all-reduces of 8 KB on eight ranks, ms")


def test_what_scales_a_step(impl):
    near(step_ms(impl, 1, 2, ETHERNET, dtype_bytes=4), 7.2389, "in float32 over Ethernet, ms")
    one = impl.tp_comm_time_per_step(1, 5, 512, 4, *PCIE)
    near(impl.tp_comm_time_per_step(10, 5, 512, 4, *PCIE), 10 * one, "ten layers", 1e-9)
    near(one, 2 * impl.allreduce_time_s(5 * 512 * 2, 4, *PCIE), "one layer has two halves", 1e-9)


# ---- decisions -----------------------------------------------------------------------------------------------------


def test_the_balance(impl):
    near(impl.balance_tokens(4096, 2, *NVLINK), 219.73, "NVLink, two ranks")
    near(impl.balance_tokens(4096, 2, *ETHERNET), 15.259, "Ethernet, two ranks")
    near(impl.balance_tokens(8192, 8, *PCIE, 4), 61.035, "PCIe, eight ranks, hidden 8,192 in float32")
    near(impl.balance_tokens(2, 4, 3.0, 5.0, 1), 30, "4 ranks, 3 B/s, 5 s, 2 bytes a token", 1e-12)
    tokens = impl.balance_tokens(4096, 4, *NVLINK)
    whole = impl.allreduce_time_s(round(tokens * 8192), 4, *NVLINK)
    near(whole, 2 * 6 * NVLINK[1], "at the balance an all-reduce takes twice its hops")


def test_your_prediction(impl):
    mine, right = impl.predicted_balance(), impl.balance_tokens(4096, 2, *NVLINK)
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number"
    assert right / 2 <= mine <= 2 * right, f"you said {mine} tokens, the two costs are equal at {right:.0f}"


@pytest.mark.parametrize(
    ("link", "tokens", "compute_s", "choices", "wanted"),
    [
        (NVLINK, 1, STEP_S, (1, 2, 4, 8), 4),
        (PCIE, 1, STEP_S, (1, 2, 4, 8), 2),
        (ETHERNET, 1, STEP_S, (1, 2, 4, 8), 1),
        (NVLINK, 1, STEP_S, (8, 2), 8),
        (NVLINK, 1, 10 * STEP_S, (8, 4, 2, 1), 8),
        (NVLINK, 2048, 0.2, (1, 2, 4, 8), 8),
        (ETHERNET, 2048, 0.2, (1, 2, 4, 8), 1),
        (PCIE, 1, STEP_S, (6,), 6),
        (NVLINK, 1, 100 * STEP_S, (1, 32), 32),
        ((float("inf"), 0.0), 1, 0.0, (4, 2, 8), 2),
    ],
)
def test_more_is_not_always_faster(impl, link, tokens, compute_s, choices, wanted):
    before = list(choices)
    found = impl.fastest_num_ranks(compute_s, LAYERS, tokens, HIDDEN, *link, choices=before)
    assert found == wanted, f"{compute_s} s on one rank, {tokens} tokens, of {choices}: got {found}, expected {wanted}"
    assert before == list(choices), "choices was changed"


def test_what_the_choice_hangs_on(impl):
    """One of 1, 2, 4 and 8 where nothing else is said; and layers, width and type count each time anew."""
    for (compute_s, layers, tokens, hidden, link), more, wanted in (
        ((STEP_S, LAYERS, 1, HIDDEN, NVLINK), {}, 4),
        ((STEP_S, LAYERS, 1, HIDDEN, PCIE), {}, 2),
        ((STEP_S, LAYERS, 1, HIDDEN, ETHERNET), {}, 1),
        ((STEP_S, 1, 1, HIDDEN, ETHERNET), {}, 8),
        ((0.2, LAYERS, 2048, HIDDEN, ETHERNET), {}, 1),
        ((0.2, LAYERS, 2048, 16, ETHERNET), {}, 4),
        ((0.2, LAYERS, 2048, 16, ETHERNET), {"dtype_bytes": 512}, 1),
        ((0.2, LAYERS, 2048, 400, ETHERNET), {"dtype_bytes": 1}, 4),
        ((0.2, LAYERS, 2048, 400, ETHERNET), {}, 2),
        ((0.2, LAYERS, 2048, 400, ETHERNET), {"dtype_bytes": 3}, 1),
    ):
        found = impl.fastest_num_ranks(compute_s, layers, tokens, hidden, *link, **more)
        assert found == wanted, f"{layers} layers, {tokens} tokens of {hidden}, {more}: got {found}, expected {wanted}"


# ---- from measurements ---------------------------------------------------------------------------------------------


def measured(link, ranks, seed, off=0.05):
    """(bytes, seconds) of sizes from 8 KiB to 64 MiB, three of each, each off by up to 5 per cent, shuffled."""
    chance, (bandwidth, latency) = random.Random(seed), link
    rows = []
    for shift in range(13, 27):
        for _ in range(3):
            traffic = 2 * (ranks - 1) / ranks * (1 << shift)
            right = traffic / bandwidth + 2 * (ranks - 1) * latency
            rows.append((1 << shift, right * chance.uniform(1 - off, 1 + off)))
    chance.shuffle(rows)
    return rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("link", "ranks"), [(NVLINK, 2), (NVLINK, 8), (PCIE, 4), (ETHERNET, 2)])
def test_a_wire_from_measurements(impl, link, ranks, seed):
    samples = measured(link, ranks, seed)
    before = list(samples)
    bandwidth, latency = impl.fit_link(samples, ranks)
    for name, found, right in (("bandwidth", bandwidth, link[0]), ("latency", latency, link[1])):
        assert abs(found / right - 1) < 0.1, (
            f"{name} on {ranks} ranks: got {found:.4g}, expected {right:.4g} within 10 per cent. Where large sizes "
            "outweigh small ones, the latency is lost: this looks like *Squares of seconds*"
        )
    assert samples == before, "samples was changed"


def test_every_sample_counts(impl):
    """The smallest and the largest size are each 5 per cent off, once; what lies between is many samples, and right."""
    samples = [(1 << shift, impl.allreduce_time_s(1 << shift, 4, *PCIE)) for shift in range(13, 27)] * 20
    (small, quick), (large, slow) = samples[0], samples[13]
    samples += [(small - 512, quick * 0.95), (large + 4096, slow * 1.05)]
    bandwidth, latency = impl.fit_link(samples, 4)
    for name, found, right in (("bandwidth", bandwidth, PCIE[0]), ("latency", latency, PCIE[1])):
        assert abs(found / right - 1) < 0.01, (
            f"{name}: got {found:.4g}, expected {right:.4g} within 1 per cent: 280 samples are exact, 2 are not. Does "
            "a line through the ends decide?"
        )


def test_all_samples_of_a_size_count(impl):
    """Half of each size's samples are 5 per cent too quick, half too slow, in any order: the middle is right."""
    exact = [(1 << shift, impl.allreduce_time_s(1 << shift, 4, *PCIE)) for shift in range(13, 27)] * 10
    quick, slow = ([(size, seconds * off) for size, seconds in exact] for off in (0.95, 1.05))
    for samples in (quick + slow, slow + quick):
        bandwidth, latency = impl.fit_link(samples, 4)
        for name, found, right in (("bandwidth", bandwidth, PCIE[0]), ("latency", latency, PCIE[1])):
            assert abs(found / right - 1) < 0.01, (
                f"{name} from 280 samples, 20 of each size: got {found:.4g}, expected {right:.4g} within 1 per cent. "
                "Are some samples left out?"
            )


def test_two_points_are_a_wire(impl):
    samples = [(size, impl.allreduce_time_s(size, 4, *PCIE)) for size in (2**24, 2**13)]
    bandwidth, latency = impl.fit_link(samples, 4)
    near(bandwidth, PCIE[0], "bandwidth", 1e-6)
    near(latency, PCIE[1], "latency", 1e-6)
    for samples, number in (([(8192, 1e-3), (8192, 2e-3)], 1), ([], 0)):
        with pytest.raises(ValueError, match=rf"^two different sizes are needed, got {number}$"):
            impl.fit_link(samples, 2)


def test_two_gpus(impl):
    """NCCL between two GPUs, where lab 10-02 has a capture: one line is within a factor of 3 of each size."""
    arms = json.loads(lzma.decompress(CAPTURE.read_bytes()))["arms"] if CAPTURE.is_file() else {}
    if "found" not in (wires := arms.get("wires", {})):
        impl.balance_tokens(4096, 2, *NVLINK)
        pytest.skip("no capture of two GPUs in lab 10-02")
    samples = [(row["bytes"], row["us"] * 1e-6) for row in wires["found"]]
    bandwidth, latency = impl.fit_link(samples, 2)
    off = [impl.allreduce_time_s(size, 2, bandwidth, latency) / seconds for size, seconds in samples]
    assert all(1 / 3 < each < 3 for each in off), f"{bandwidth:.3g} B/s, {latency:.3g} s: {off}"
