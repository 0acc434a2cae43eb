"""Lab 11-05: your two kernels against float64. On a GPU for real; without one in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.labs import load
from course.triton_cpu import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()

import numpy as np  # noqa: E402
import torch  # noqa: E402

HERE = Path(__file__).resolve().parent
Counter = load(HERE / "triton_count.py").Watch
DEVICE = "cuda" if ON_GPU else "cpu"
interpreter_only = pytest.mark.skipif(ON_GPU, reason="counts are taken in Triton's interpreter, not on a GPU")
MIXED = [2, 0, -1, 2, 3, 0, 0, -1, 2, 1, 1, 2]


class Watch(Counter):
    """Counts the bytes of one tensor that are asked for, too, and the launches."""

    def __init__(self, of=None):
        super().__init__()
        self.of, self.read, self.launches = of, 0, 0

    def _check(self, what, ptrs, mask):
        size = super()._check(what, ptrs, mask)
        if self.of is not None and what == "load":
            addresses, wanted = np.broadcast_arrays(ptrs.data, mask.data)
            at = addresses[wanted.astype(bool)].astype(np.int64) - self.of.data_ptr()
            self.read += int(((at >= 0) & (at < self.of.nbytes)).sum()) * self.of.element_size()
        return size

    def _hook(self, name, original):
        hook = super()._hook(name, original)
        if name != "__call__":
            return hook

        def launch(grid, *args, **kwargs):
            self.launches += 1
            return hook(grid, *args, **kwargs)

        return launch


class Case:
    """Random x, A, B, scalings and y. slots: a list."""

    def __init__(self, slots, seed=0, num_slots=4, inputs=32, rank=16, outputs=24, dtype=torch.float16):
        gen = torch.Generator().manual_seed(seed)
        self.x = torch.randn(len(slots), inputs, generator=gen).to(dtype).to(DEVICE)
        self.A = (torch.randn(num_slots, rank, inputs, generator=gen) / inputs**0.5).to(dtype).to(DEVICE)
        self.B = torch.randn(num_slots, outputs, rank, generator=gen).to(dtype).to(DEVICE)
        self.y = torch.randn(len(slots), outputs, generator=gen).to(dtype).to(DEVICE)
        self.scalings = (torch.arange(num_slots) / 2 + 0.5).float().to(DEVICE)
        self.slots = torch.tensor(slots, dtype=torch.int64, device=DEVICE)

    def shrunk(self):
        rows = [
            self.scalings[k].double() * (self.A[k].double() @ x.double()) if k >= 0 else torch.zeros(self.A.shape[1])
            for x, k in zip(self.x, self.slots.tolist(), strict=True)
        ]
        return torch.stack([row.double().to(DEVICE) for row in rows]) if rows else torch.zeros(0, self.A.shape[1])

    def expanded(self, s):
        rows = [
            y.double() + (self.B[k].double() @ row.double() if k >= 0 else 0)
            for y, row, k in zip(self.y, s, self.slots.tolist(), strict=True)
        ]
        return torch.stack(rows)


def off(got, wanted, slots, what, gate):
    """Fails with the first row that is off."""
    error = (got.double() - wanted).abs().amax(dim=1)
    bad = torch.nonzero(~(error <= gate)).flatten().tolist()
    first = f"row {bad[0]} of slot {slots[bad[0]]} by {error[bad[0]]:.2g}" if bad else ""
    assert not bad, f"{what}: rows {bad} of slots {[slots[i] for i in bad]} are off, {first}; allowed is {gate:g}"


def check(impl, case):
    before = [each.clone() for each in (case.x, case.A, case.B, case.slots, case.scalings)]
    with Watch() as seen:
        s = impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
    assert s.dtype == torch.float32, f"the rank-r middle must be float32, got {s.dtype}"
    assert s.shape == (len(case.x), case.A.shape[1])
    slots = case.slots.tolist()
    off(s, case.shrunk(), slots, "shrink", 2e-3)
    assert ON_GPU or (seen.launches == 1 and seen.given(case.A)), f"{seen.launches} launches of shrink"
    y, wanted = case.y.clone(), case.expanded(s)
    with Watch() as seen:
        out = impl.lora_expand(s, case.B, case.slots, y)
    assert out is y, "y is changed in place and returned"
    off(y, wanted, slots, "expand", 1e-2 if y.dtype == torch.float16 else 1e-4)
    assert ON_GPU or (seen.launches == 1 and seen.given(y)), f"{seen.launches} launches of expand"
    after = (case.x, case.A, case.B, case.slots, case.scalings)
    same = [torch.equal(a.nan_to_num(77), b.nan_to_num(77)) for a, b in zip(before, after, strict=True)]
    assert all(same), "an argument was changed"
    base = case.slots < 0
    assert torch.equal(y[base], case.y[base]), "a row of -1 was touched"
    return s, y


def test_one_adapter(impl):
    check(impl, Case([1] * 20))


@pytest.mark.parametrize("tokens", [1, 16, 17, 33])
def test_every_edge_of_a_tile(impl, tokens):
    check(impl, Case([2] * tokens + [0] * 2, seed=tokens))


def test_mixed_and_scattered(impl):
    check(impl, Case(MIXED))


@pytest.mark.parametrize(("rank", "inputs", "outputs"), [(8, 64, 48), (16, 100, 70), (32, 40, 33)])
def test_ranks_and_widths(impl, rank, inputs, outputs):
    check(impl, Case(MIXED, rank=rank, inputs=inputs, outputs=outputs))


def test_in_float32(impl):
    check(impl, Case(MIXED, dtype=torch.float32))


def test_nobody_has_an_adapter(impl):
    s, _ = check(impl, Case([-1] * 5))
    assert not s.any(), "no adapter: zeros, not what was in memory"


def test_poison_in_empty_slots(impl):
    case = Case([2, -1, 0, 2, 2])
    for each in (case.A, case.B):
        each[1], each[3] = float("nan"), float("nan")
    case.scalings[1] = float("nan")
    s, y = check(impl, case)
    assert torch.isfinite(s).all() and torch.isfinite(y).all()


def test_a_neighbour_may_be_broken(impl):
    """NaN in an adapter that is in use stays in its rows."""
    case = Case(MIXED)
    case.A[1], case.B[1] = float("nan"), float("nan")
    s = impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
    y = impl.lora_expand(s, case.B, case.slots, case.y.clone())
    rows = torch.nonzero(torch.isnan(y).any(dim=1)).flatten().tolist()
    assert rows == [9, 10], f"rows {rows} are NaN; only 9 and 10 have the adapter that is"


def test_rows_of_a_wider_array(impl):
    case = Case(MIXED)
    wide_x, wide_y = torch.full((12, 50), 9.0), torch.full((12, 40), 7.0)
    wide_x, wide_y = wide_x.to(case.x).contiguous(), wide_y.to(case.y).contiguous()
    wide_x[:, 5:37], wide_y[:, 3:27] = case.x, case.y
    case.x, view = wide_x[:, 5:37], wide_y[:, 3:27]
    s = impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
    off(s, case.shrunk(), MIXED, "shrink of a view", 2e-3)
    wanted = case.expanded(s)
    impl.lora_expand(s, case.B, case.slots, view)
    off(view, wanted, MIXED, "expand into a view", 1e-2)
    assert (wide_y[:, :3] == 7).all() and (wide_y[:, 27:] == 7).all(), "columns beside the view were written"


def test_rows_move_with_their_slots(impl):
    case = Case(MIXED)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    s = impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
    moved = impl.lora_shrink(case.x[order], case.A, case.slots[order], case.scalings)
    assert torch.equal(moved, s[order]), "a row's sum depends on where it stands"


READS = {"one": [0] * 32, "four, dealt round": [0, 1, 2, 3] * 8, "32 strangers": list(range(32)), "base": [-1] * 32}


@interpreter_only
def test_reads_of_adapters(impl):
    found = []
    for name, slots in READS.items():
        case = Case(slots, num_slots=32, dtype=torch.float32)
        with Watch(case.A) as seen:
            impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
        found.append(seen.read / (case.A[0].numel() * 4))
        assert found[-1] <= (2, 4, 32, 0)[len(found) - 1], (
            f"{name}: {found[-1]:g} times an adapter's A was read for 32 tokens, allowed are "
            f"{(2, 4, 32, 0)[len(found) - 1]}. This looks like *One token a program*"
        )
    told = tuple(impl.predicted_reads())
    assert told == tuple(found), f"you predicted {told}; your kernel reads {tuple(found)}"


@interpreter_only
def test_an_empty_batch(impl):
    case = Case([])
    with Watch() as seen:
        s = impl.lora_shrink(case.x, case.A, case.slots, case.scalings)
        y = impl.lora_expand(s, case.B, case.slots, case.y)
    assert (s.shape, y.shape, seen.launches) == ((0, 16), (0, 24), 0)


def test_doors(impl):
    case = Case([0, 1])
    with pytest.raises(ValueError, match=r"^A must have 32 inputs, got 30$"):
        impl.lora_shrink(case.x, case.A[:, :, :30], case.slots, case.scalings)
    with pytest.raises(ValueError, match=r"^B must have 24 outputs, got 20$"):
        impl.lora_expand(torch.zeros(2, 16), case.B[:, :20], case.slots, case.y)
    for wrong in (4, -2):
        slots = torch.tensor([0, wrong])
        words = rf"^slot {wrong} is out of range: there are 4 slots, and -1 is no adapter$"
        with pytest.raises(ValueError, match=words):
            impl.lora_shrink(case.x, case.A, slots, case.scalings)
        with pytest.raises(ValueError, match=words):
            impl.lora_expand(torch.zeros(2, 16), case.B, slots, case.y)
    with pytest.raises(ValueError, match=r"^slots must have one entry a token \(2\), got 1$"):
        impl.lora_shrink(case.x, case.A, case.slots[:1], case.scalings)
    with pytest.raises(ValueError, match=r"^slots must have one entry a token \(2\), got 1$"):
        impl.lora_expand(torch.zeros(2, 16), case.B, case.slots[:1], case.y)
