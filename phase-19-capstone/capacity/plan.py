"""Four divisions of every design round: what fits, what is fast enough, how many requests, how many devices.

It is a model, and nothing in it was timed: weights and KV are read once a step, prefill has the device for itself, and
replicas come whole. Bytes, seconds and dollars; 1 GB is 1e9 bytes. What the divisions leave out stands in
:class:`LeftOut`, beside each plan. KV bytes per token are those of lab 00-02, the wire is that of lab 10-03.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from course.labs import find_labs, load

kv_bytes_per_token = load(find_labs("00-02")[0].folder / "solution.py").kv_bytes_per_token
tp_comm_time_per_step = load(find_labs("10-03")[0].folder / "solution.py").tp_comm_time_per_step

CHOICES = {"reserve": ("whole", "mean"), "itl_of": ("step", "gap")}


class NoPlan(ValueError):
    """The load cannot be served this way; the text says what is in the way."""


@dataclass(frozen=True)
class Model:
    """A dense model. ``params`` are all its weights, ``weight_bytes`` and ``kv_bytes`` the bytes of one number."""

    name: str
    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: float = 2
    kv_bytes: int = 2


@dataclass(frozen=True)
class Device:
    """One accelerator by its data sheet: bytes, bytes a second, dense FLOP/s in 16 bit."""

    name: str
    memory: float
    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Load:
    """What is to be served, and what it may cost.

    Args:
        prompt, output: tokens of a request, each at least 1.
        itl_s: largest mean time between two tokens.
        itl_of: what this time holds: "step" (the step alone, as if prefill ran elsewhere) or "gap" (others' prefill
            too, which the full replica does between a request's tokens).
        rps: requests a second, above 0.
        usd_per_hour: price of one device. It is yours to look up.
        memory_share, flops_share: what of a device's memory the engine may take, and what of its peak prefill reaches.
        reserve: context for which a request's slot is sized: "whole" (prompt + output) or "mean" (half of the output:
            more slots, and now and then a preemption). The time of a step takes the mean in both.
        max_num_seqs: requests that an engine runs together at most; None: as many as fit.
        ttft_s: largest time to the first token of a request that does not wait; None: any.
        link_Bps, hop_s: the wire between the devices of a replica, for :class:`LeftOut` only.
    """

    prompt: int
    output: int
    itl_s: float
    rps: float
    usd_per_hour: float
    memory_share: float = 0.92
    flops_share: float = 0.5
    reserve: str = "whole"
    itl_of: str = "step"
    max_num_seqs: int | None = None
    ttft_s: float | None = None
    link_Bps: float = 300e9
    hop_s: float = 3e-6

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            if getattr(self, name) < 1:
                raise NoPlan(f"{name} must be at least 1 token, got {getattr(self, name)}")
        for name in ("itl_s", "rps", "link_Bps"):
            if not 0 < getattr(self, name) < math.inf:
                raise NoPlan(f"{name} must be finite and above 0, got {getattr(self, name)}")
        for name in ("memory_share", "flops_share"):
            if not 0 < getattr(self, name) <= 1:
                raise NoPlan(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if not 0 <= self.usd_per_hour < math.inf:
            raise NoPlan(f"usd_per_hour must be finite and 0 or more, got {self.usd_per_hour}")
        if self.ttft_s is not None and not self.ttft_s > 0:
            raise NoPlan(f"ttft_s must be above 0, got {self.ttft_s}")
        if self.max_num_seqs is not None and self.max_num_seqs < 1:
            raise NoPlan(f"max_num_seqs must be at least 1, got {self.max_num_seqs}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise NoPlan(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(allowed)}")


@dataclass(frozen=True)
class LeftOut:
    """What the four divisions do not count, in milliseconds of one full step.

    compute_ms: arithmetic of the step, at the same share of peak as prefill. Above ``step_ms`` the step is bound by it.
    wire_ms: the all-reduces of the step (lab 10-03), none of it hidden.
    gap_ms: mean time between two tokens of one request while its replica is full: others' prefill is in it.
    """

    compute_ms: float
    wire_ms: float
    gap_ms: float


@dataclass(frozen=True)
class Plan:
    """A fleet of equal replicas, each of ``tp`` devices.

    slots: requests whose KV fits into a replica. batch: those that run together, at most ``slots``.
    binding: "memory", "latency" or "max_num_seqs", whichever ends the batch. rps: requests a second of a full replica.
    usd_per_m, usd_per_m_served: dollars for a million output tokens, at full load and for what is really asked.
    """

    tp: int
    reserve: str
    slots: int
    batch: int
    binding: str
    step_ms: float
    prefill_s: float
    rps: float
    replicas: int
    devices: int
    usd_per_m: float
    usd_per_m_served: float
    busy: float
    left_out: LeftOut


@dataclass(frozen=True)
class _Rank:
    """One device's share of a model: bytes of weights, of KV per token, and seconds of a step."""

    weights: float
    kv: float
    free: float
    context: float
    bandwidth: float

    def step(self, batch: int) -> float:
        return (self.weights + batch * self.kv * self.context) / self.bandwidth


def usd_per_million(usd_per_hour: float, tokens_per_s: float) -> float:
    """Price of a million tokens. 2 dollars an hour at 2,000 tokens a second: 0.278."""
    return usd_per_hour / 3600 / tokens_per_s * 1e6


def plan(model: Model, device: Device, load: Load, tp: int) -> Plan:
    """How many devices serve a load with ``tp`` of them a replica, and for how much.

    Raises:
        NoPlan: "tensor_parallel_size=3 does not divide 8 KV heads"; "weights take 141.2 GB of the 73.6 GB that a
            device gives: tensor_parallel_size must be more than 1"; "no batch meets itl 30 ms: the weights alone take
            35.3 ms"; and where one request has no room, alone is too slow, or its prefill misses ``ttft_s``.
    """
    rank = _rank(model, device, load, tp)
    reserved = rank.kv * (load.prompt + (load.output if load.reserve == "whole" else load.output / 2))
    slots = int(rank.free / reserved)
    if slots < 1:
        raise NoPlan(f"a request reserves {reserved / 1e9:.2f} GB of KV, and {rank.free / 1e9:.2f} GB are left for it")
    flops = device.flops * load.flops_share * tp
    prefill = 2 * model.params * load.prompt / flops
    if load.ttft_s is not None and prefill > load.ttft_s:
        raise NoPlan(f"ttft {load.ttft_s * 1e3:g} ms is missed: the prompt alone takes {prefill * 1e3:.0f} ms")
    batch = _batch(rank, load, slots, prefill)
    step = rank.step(batch)
    request_s = prefill + load.output * step / batch
    replicas = math.ceil(load.rps * request_s)
    wire = tp_comm_time_per_step(model.layers, batch, model.hidden, tp, load.link_Bps, load.hop_s)
    compute = 2 * model.params * batch / flops
    return Plan(
        tp=tp,
        reserve=load.reserve,
        slots=slots,
        batch=batch,
        binding="memory" if batch == slots else "max_num_seqs" if batch == load.max_num_seqs else "latency",
        step_ms=step * 1e3,
        prefill_s=prefill,
        rps=1 / request_s,
        replicas=replicas,
        devices=replicas * tp,
        usd_per_m=usd_per_million(load.usd_per_hour * tp, load.output / request_s),
        usd_per_m_served=usd_per_million(load.usd_per_hour * replicas * tp, load.output * load.rps),
        busy=load.rps * request_s / replicas,
        left_out=LeftOut(compute * 1e3, wire * 1e3, batch * request_s / load.output * 1e3),
    )


def _batch(rank: _Rank, load: Load, slots: int, prefill_s: float) -> int:
    """The largest batch that memory, latency and ``max_num_seqs`` allow; refuses where that is none."""

    def itl(batch: int) -> float:
        return rank.step(batch) + (batch * prefill_s / load.output if load.itl_of == "gap" else 0.0)

    if itl(1) > load.itl_s:
        weights = rank.weights / rank.bandwidth
        what, time = ("the weights alone take", weights) if weights > load.itl_s else ("one request takes", itl(1))
        raise NoPlan(f"no batch meets itl {load.itl_s * 1e3:g} ms: {what} {time * 1e3:.1f} ms")
    most = min(slots, load.max_num_seqs or slots)
    return bisect_right(range(1, most + 1), load.itl_s, key=itl)


def _rank(model: Model, device: Device, load: Load, tp: int) -> _Rank:
    """A device's share; refuses what cannot be divided, and weights that do not fit."""
    if tp < 1:
        raise NoPlan(f"tensor_parallel_size must be at least 1, got {tp}")
    small, large = sorted((model.kv_heads, tp))
    if large % small:
        raise NoPlan(f"tensor_parallel_size={tp} does not divide {model.kv_heads} KV heads")
    if model.heads % tp:
        raise NoPlan(f"tensor_parallel_size={tp} does not divide {model.heads} attention heads")
    given, weights = device.memory * load.memory_share, model.params * model.weight_bytes / tp
    if weights >= given:
        raise NoPlan(
            f"weights take {weights / 1e9:.1f} GB of the {given / 1e9:.1f} GB that a device gives: "
            f"tensor_parallel_size must be more than {tp}"
        )
    kv = kv_bytes_per_token(model.layers, max(model.kv_heads // tp, 1), model.head_dim, model.kv_bytes)
    return _Rank(weights, kv, given - weights, load.prompt + load.output / 2, device.bandwidth)
