"""Lab 02-04: your kernel against float64. On a GPU for real; without one in Triton's interpreter, on small sizes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch", reason='this lab needs torch: pip install -e ".[triton]"')
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so it must stand before the import
pytest.importorskip("triton", reason='this lab needs triton: pip install -e ".[triton]"')

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  (after the skips)

HERE = Path(__file__).resolve().parent


def _teach_the_interpreter_new_numpy():
    """Triton 3.6 turns a loop bound into an int by int(array of one element), which numpy 2.4 and later refuse."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor, *scope):
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(()))

    interpreter._patch_lang_tensor = patched


if not ON_GPU:
    _teach_the_interpreter_new_numpy()
DEVICE = "cuda" if ON_GPU else "cpu"
GATE = {torch.float16: 2e-3, torch.float32: 1e-5}


class Case:
    """Random K and V of several requests, scattered over shuffled blocks; what nobody wrote is poison."""

    def __init__(self, seed, lens, heads=(4, 2), head_dim=16, block_size=16, dtype=torch.float16, poison=1000.0):
        gen = torch.Generator().manual_seed(seed)
        num_blocks = sum(-(-n // block_size) for n in lens) + 3
        free = (torch.randperm(num_blocks - 1, generator=gen) + 1).tolist()
        shape = (num_blocks, block_size, heads[1], head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, poison, dtype=dtype) for _ in range(2))
        self.tables = torch.zeros(len(lens), max(-(-n // block_size) for n in lens) + 1, dtype=torch.int32)
        self.q = torch.randn(len(lens), heads[0], head_dim, generator=gen).to(dtype)
        self.keys, self.values = [], []
        for row, n in enumerate(lens):
            k, v = torch.randn(2, n, heads[1], head_dim, generator=gen).to(dtype)
            for start in range(0, n, block_size):
                block = free.pop()
                self.tables[row, start // block_size] = block
                part = slice(start, min(start + block_size, n))
                self.k_cache[block, : part.stop - start] = k[part]
                self.v_cache[block, : part.stop - start] = v[part]
            self.keys.append(k)
            self.values.append(v)
        self.lens = torch.tensor(lens, dtype=torch.int32)

    def on_device(self):
        return [x.to(DEVICE) for x in (self.q, self.k_cache, self.v_cache, self.tables, self.lens)]

    def judge(self):
        """float64, written out for one head at a time."""
        rows = []
        for q, k, v in zip(self.q.double(), self.keys, self.values, strict=True):
            group = len(q) // k.shape[1]
            heads = []
            for h in range(len(q)):
                keys, values = k[:, h // group].double(), v[:, h // group].double()
                weights = torch.exp(keys @ q[h] / q.shape[-1] ** 0.5)
                heads.append(weights @ values / weights.sum())
            rows.append(torch.stack(heads))
        return torch.stack(rows)


def worst(out, expected):
    return (out.double().cpu() - expected).abs().max().item()


def check(impl, case, **kw):
    out = impl.paged_attention_triton(*case.on_device(), **kw)
    assert out.dtype == case.q.dtype and out.shape == case.q.shape
    error, gate = worst(out, case.judge()), GATE[case.q.dtype]
    assert error <= gate, f"max|difference| to float64 is {error:.1e}, allowed are {gate:.0e}"


def test_dense_is_the_judge(impl):
    for heads in [(4, 4), (4, 2), (3, 1)]:
        case = Case(0, [37], heads)
        out = impl.dense_attention(case.q[0], case.keys[0], case.values[0])
        assert out.dtype == torch.float64 and out.shape == case.q[0].shape
        assert worst(out, case.judge()[0]) < 1e-12
    far = Case(0, [37], dtype=torch.float32)
    out = impl.dense_attention(1000 * far.q[0], far.keys[0], far.values[0])
    assert torch.isfinite(out).all(), "scores of a thousand: exp without the maximum overflows in float64 too"


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_torch_reference(impl, heads):
    case = Case(1, [1, 16, 37, 130], heads, dtype=torch.float32)
    args = (case.q, case.k_cache, case.v_cache, case.tables, case.lens)
    out = impl.paged_attention_ref(*args)
    assert out.dtype == torch.float32 and worst(out, case.judge()) < 1e-5
    assert worst(impl.paged_attention_ref(*args, acc_dtype=torch.float64), case.judge()) < 2e-7


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes; views of given ones are not made."""

    def __init__(self, *given):
        super().__init__()
        self.size, self.name, self.given = 0, "", {x.untyped_storage().data_ptr() for x in given}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            made = isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.given
            if made and x.numel() > self.size:
                self.size, self.name = x.numel(), str(func)
        return out


def test_the_reference_holds_one_block_at_a_time(impl):
    case = Case(12, [640], (4, 2), dtype=torch.float32)
    args = (case.q, case.k_cache, case.v_cache, case.tables, case.lens)
    before = [x.clone() for x in args]
    with Largest(*args) as seen:
        impl.paged_attention_ref(*args)
    words = f"{seen.name} made a tensor of {seen.size} numbers; one block for 4 heads of 16 is {16 * 4 * 16}"
    assert seen.size <= 16 * 4 * 16, f"{words}: was the request gathered as a whole?"
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True)), "its arguments were changed"


@pytest.mark.parametrize(("block_size", "poison"), [(8, float("nan")), (5, 6e4), (32, float("inf"))])
def test_the_reference_at_any_block_size(impl, block_size, poison):
    case = Case(13, [1, 37, 32], block_size=block_size, dtype=torch.float32, poison=poison)
    case.tables[case.tables == 0] = 10**6  # behind a request's last block
    out = impl.paged_attention_ref(case.q, case.k_cache, case.v_cache, case.tables, case.lens)
    assert out.shape == case.q.shape
    error = worst(out, case.judge())
    assert error < 1e-5, f"blocks of {block_size}, unwritten slots {poison}: off by {error:.1e}, allowed are 1e-05"


def test_reference_computes_in_the_accumulators_type(impl):
    """Storage is fp16 in both; only the accumulators differ. This is why kernels accumulate in float32."""
    case = Case(2, [400, 390], (4, 4), head_dim=32)
    args, judge = (case.q, case.k_cache, case.v_cache, case.tables, case.lens), case.judge()
    wide = worst(impl.paged_attention_ref(*args), judge)
    narrow = worst(impl.paged_attention_ref(*args, acc_dtype=torch.float16), judge)
    assert impl.paged_attention_ref(*args).dtype == torch.float16, "the result has q's type"
    assert narrow > 3 * wide, f"fp16 accumulators: {narrow:.1e}, float32: {wide:.1e}"


@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 63, 64, 65, 130])
def test_kernel_at_every_edge(impl, seq_len):
    check(impl, Case(seq_len, [seq_len]))


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (6, 2), (20, 1)])
def test_kernel_with_grouped_heads(impl, heads):
    check(impl, Case(3, [5, 40], heads))


def test_kernel_with_a_batch_of_lengths(impl):
    check(impl, Case(4, [1, 70, 16, 33]))


@pytest.mark.parametrize(("block_size", "tile"), [(8, 16), (16, 16), (32, 16), (16, 128), (5, 32)])
def test_tile_and_block_size_are_independent(impl, block_size, tile):
    check(impl, Case(5, [50, 3], block_size=block_size), tile=tile)


def test_kernel_in_float32(impl):
    check(impl, Case(6, [45, 20], head_dim=32, dtype=torch.float32))


def test_scores_far_apart_do_not_overflow(impl):
    """Keys 60 times as large: exp without the maximum would be infinite; the order of the tiles must not matter."""
    for sign in (1, -1):
        case = Case(7, [70], dtype=torch.float32)
        case.k_cache *= 60
        case.keys = [60 * sign * k for k in case.keys]
        case.k_cache *= sign
        out = impl.paged_attention_triton(*case.on_device(), tile=16)
        expected = impl.paged_attention_ref(case.q, case.k_cache, case.v_cache, case.tables, case.lens, torch.float64)
        assert worst(out, expected.double()) <= 1e-4
        assert torch.isfinite(out).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 6e4])
def test_what_lies_beyond_the_end_is_never_counted(impl, poison):
    check(impl, Case(8, [18, 1, 33], poison=poison))


def test_placement_is_invisible(impl):
    """The same content behind two tables: bit for bit the same."""
    case = Case(9, [40])
    q, kc, vc, tables, lens = case.on_device()
    first = impl.paged_attention_triton(q, kc, vc, tables, lens)
    other = torch.zeros_like(tables)
    other[0, :3] = torch.tensor([2, 0, 1])
    new_k, new_v = torch.full_like(kc, 7.0), torch.full_like(vc, 7.0)
    new_k[other[0, :3].long()], new_v[other[0, :3].long()] = kc[tables[0, :3].long()], vc[tables[0, :3].long()]
    assert torch.equal(impl.paged_attention_triton(q, new_k, new_v, other, lens), first)


class Recorder:
    """Stands where the kernel was: notes the grid of each launch, and launches."""

    def __init__(self, kernel):
        self.kernel, self.grids = kernel, []

    def __getitem__(self, grid):
        self.grids.append(tuple(grid({}) if callable(grid) else grid))
        return self.kernel[grid]


def test_the_kernel_does_the_work(impl, monkeypatch):
    case, recorder = Case(14, [40, 7, 21], heads=(8, 2)), Recorder(impl._paged_decode_kernel)
    monkeypatch.setattr(impl, "_paged_decode_kernel", recorder)
    for name in ("dense_attention", "paged_attention_ref"):
        monkeypatch.setattr(impl, name, None)
    args = case.on_device()
    before = [x.clone() for x in args]
    impl.paged_attention_triton(*args)
    grids = [tuple(x for x in grid if x != 1) for grid in recorder.grids]
    assert grids == [(3, 2)], f"one launch of 3 requests x 2 KV heads was expected, got {recorder.grids}"
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True)), "the launch changed its inputs"


class Idle:
    """Stands where the kernel was, and launches nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


def test_nobody_else_does_it(impl, monkeypatch):
    """With a kernel that does nothing the answer must be missing: it came from nowhere else."""
    case = Case(15, [40, 7, 21], heads=(8, 2))
    monkeypatch.setattr(impl, "_paged_decode_kernel", Idle())
    out = impl.paged_attention_triton(*case.on_device())
    error = worst(out.nan_to_num(), case.judge())
    assert not error < 1e-2, f"no kernel was launched, and the answer is right within {error:.1e}"


def test_heads_that_do_not_divide_are_refused(impl):
    case = Case(10, [4], heads=(4, 4))
    with pytest.raises(ValueError, match=r"^num_heads 4 is not a multiple of num_kv_heads 3$"):
        impl.paged_attention_triton(case.q, case.k_cache[:, :, :3], case.v_cache[:, :, :3], case.tables, case.lens)


def test_the_engines_gather_agrees(impl):
    """Float64 of the engine's own paged backend on the same cache."""
    import numpy as np

    from mini_vllm import AttentionMetadata, KVCache, PagedGatherBackend

    case = Case(11, [33, 7], dtype=torch.float32, poison=0.0)
    num_blocks = len(case.k_cache)
    cache = KVCache(1, num_blocks, 16, 2, 16, "float64")
    cache.data[0, :, :, 0], cache.data[0, :, :, 1] = case.k_cache.numpy(), case.v_cache.numpy()
    last = [int(case.tables[r, (n - 1) // 16]) * 16 + (n - 1) % 16 for r, n in enumerate([33, 7])]
    meta = AttentionMetadata(np.arange(3), np.array([33, 7]), case.tables.numpy().astype(np.int64), np.array(last))
    k, v = (np.stack([x[-1].double().numpy() for x in xs]) for xs in (case.keys, case.values))
    theirs = PagedGatherBackend(cache, 4, [None]).begin_step(meta)(0, case.q.double().numpy(), k, v)
    mine = impl.paged_attention_triton(*case.on_device()).cpu().numpy().reshape(2, -1)
    assert np.abs(mine - theirs).max() < 1e-5


@pytest.mark.provided
def test_the_readme_quotes_the_capture():
    """Each row of the README's table is the best tile of its shape in captured/h200.jsonl."""
    lines = (HERE / "captured" / "h200.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    kernels = [row for row in rows if row["what"] == "kernel"]
    best = {}
    for row in kernels:
        if row["shape"] not in best or row["ms"] < best[row["shape"]]["ms"]:
            best[row["shape"]] = row
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"\| ([\d.]+) ms \| ([\d,]+) GB/s \| \*{0,2}([\d.]+) % ?\*{0,2} ?\| ([\d.e-]+) \|", readme)
    quoted = {(float(ms), int(gb.replace(",", "")), float(share), float(error)) for ms, gb, share, error in table}
    shares = [(r["ms"], r["gb_per_s"], round(100 * r["share_of_copy"], 1), r["max_error"]) for r in best.values()]
    assert quoted == set(shares) and len(quoted) == 6
    assert max(row["max_error"] for row in kernels) < 1.2e-4, "half a step of fp16 at 0.36"
    assert f"**{rows[0]['gb_per_s']:,} GB/s**" in readme
