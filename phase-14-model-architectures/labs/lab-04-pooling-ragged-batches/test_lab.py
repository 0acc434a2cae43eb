"""Lab 14-04: one vector a prompt, however the prompt came."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
KINDS = ("CLS", "LAST", "MEAN")
LENGTHS = (40, 17, 1, 9)
PLANS = {"whole": [64], "sevens": [7], "sixteens": [16], "one by one": [1], "uneven": [3, 1, 9, 2, 30]}


def wanted(rows, kind):
    rows = np.asarray(rows, np.float64)
    return {"CLS": rows[0], "LAST": rows[-1], "MEAN": rows.mean(axis=0)}[kind]


def prompts_of(lengths, seed=0, width=6):
    rng = np.random.default_rng(seed)
    return {f"R{i}": (rng.standard_normal((length, width)) + 1).astype(np.float32) for i, length in enumerate(lengths)}


def cosine(a, b):
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


# ---- whole prompts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(5, 1, 8, 3), (40, 17, 1, 9), (1, 1, 1), (12,)])
def test_ragged(impl, kind, lengths):
    prompts = prompts_of(lengths)
    found = impl.pool(np.concatenate(list(prompts.values())), list(lengths), kind)
    assert found.shape == (len(lengths), 6) and found.dtype == np.float32
    for row, rows in zip(found, prompts.values(), strict=True):
        assert np.allclose(row, wanted(rows, kind), atol=1e-5), f"{kind} of {lengths}: {row} for {wanted(rows, kind)}"


@pytest.mark.parametrize("kind", KINDS)
def test_one_and_none(impl, kind):
    assert impl.pool(np.zeros((0, 6), np.float32), [], kind).shape == (0, 6)
    assert impl.pool(np.zeros((0, 6), np.float32), [], kind).dtype == np.float32
    assert impl.RaggedPooler(kind).step(np.zeros((0, 6), np.float32), []) == {}


def test_half_precision_adds_in_single(impl):
    """4,096 rows of 40: their sum is more than float16 can say."""
    hidden = np.full((4096, 3), 40.0, np.float16)
    assert np.allclose(impl.pool(hidden, [4096], "MEAN"), 40, atol=0.02)
    pooler = impl.RaggedPooler("MEAN")
    assert pooler.step(hidden[:2000], [("A", 0, 2000, 4096)]) == {}
    found = pooler.step(hidden[2000:], [("A", 2000, 2096, 4096)])["A"]
    assert np.allclose(found, 40, atol=0.02) and found.dtype == np.float32, f"mean of 40 and 40 is {found}"


# ---- chunks --------------------------------------------------------------------------------------------------------


def serve(pooler, prompts, plan, budget=64):
    """Steps in which every unfinished request gets its next chunk; what came out, and in which step."""
    at, turn, step, found, when, asked = dict.fromkeys(prompts, 0), 0, 0, {}, {}, {}
    while any(at[name] < len(rows) for name, rows in prompts.items()):
        batch, rows = [], []
        for name, hidden in prompts.items():
            size = min(plan[turn % len(plan)], len(hidden) - at[name], budget - sum(row[2] for row in batch))
            turn += 1
            if size > 0:
                batch.append((name, at[name], size, len(hidden)))
                rows.append(hidden[at[name] : at[name] + size])
                at[name] += size
                if at[name] == len(hidden):
                    asked[name] = step
        buffer = np.concatenate(rows)
        for name, vector in pooler.step(buffer, batch).items():
            assert name not in found, f"{name} is answered twice"
            found[name], when[name] = vector, step
        buffer[:] = 99.0
        step += 1
    assert when == asked, f"answered in these steps: {when}; the prompts end in these: {asked}"
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", PLANS)
def test_chunks_change_nothing(impl, kind, plan):
    prompts = prompts_of(LENGTHS)
    found = serve(impl.RaggedPooler(kind), prompts, PLANS[plan])
    for name, rows in prompts.items():
        assert found[name].shape == (6,) and found[name].dtype == np.float32
        assert np.allclose(found[name], wanted(rows, kind), atol=1e-5), (
            f"{name}, {len(rows)} tokens, {kind}, chunks {PLANS[plan]}: {found[name]} for {wanted(rows, kind)}"
        )


def test_uneven_chunks_weigh_by_tokens(impl):
    hidden, pooler = np.array([[0.0], [0.0], [0.0], [4.0]], np.float32), impl.RaggedPooler("MEAN")
    assert pooler.step(hidden[:3], [("A", 0, 3, 4)]) == {}
    found = float(pooler.step(hidden[3:], [("A", 3, 1, 4)])["A"][0])
    assert found == pytest.approx(1), (
        f"mean of (0, 0, 0, 4) in chunks of 3 and 1 is {found:g}: "
        "4 is the last chunk's, 2 the mean of the chunks' means"
    )


def test_the_order_of_the_batch_may_change(impl):
    """Requests come and go, and stand elsewhere in the next step."""
    a, b = prompts_of((6, 6)).values()
    for kind in KINDS:
        pooler = impl.RaggedPooler(kind)
        assert pooler.step(np.concatenate([a[:4], b[:2]]), [("A", 0, 4, 6), ("B", 0, 2, 6)]) == {}
        found = pooler.step(np.concatenate([b[2:], a[4:]]), [("B", 2, 4, 6), ("A", 4, 2, 6)])
        assert list(found) == ["B", "A"]
        assert np.allclose(found["A"], wanted(a, kind), atol=1e-5), kind
        assert np.allclose(found["B"], wanted(b, kind), atol=1e-5), kind


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_starts_again(impl, kind):
    [rows] = prompts_of((9,)).values()
    pooler = impl.RaggedPooler(kind)
    pooler.step(rows[:5] + 50, [("A", 0, 5, 9)])
    pooler.step(rows[:3], [("A", 0, 3, 9)])
    found = pooler.step(rows[3:], [("A", 3, 6, 9)])["A"]
    assert np.allclose(found, wanted(rows, kind), atol=1e-5), f"what was before the restart is still there: {found}"


@pytest.mark.parametrize("kind", KINDS)
def test_same_id_again(impl, kind):
    first, second = prompts_of((7, 5)).values()
    pooler = impl.RaggedPooler(kind)
    pooler.step(first[:4], [("A", 0, 4, 7)])
    assert np.allclose(pooler.step(first[4:], [("A", 4, 3, 7)])["A"], wanted(first, kind), atol=1e-5)
    if kind != "LAST":
        with pytest.raises(ValueError, match=r"request 'A' goes on at token 7, but .* has seen 0"):
            pooler.step(first[:1], [("A", 7, 1, 9)])
    assert np.allclose(pooler.step(second, [("A", 0, 5, 5)])["A"], wanted(second, kind), atol=1e-5)


def test_abort_forgets(impl):
    [rows] = prompts_of((8,)).values()
    pooler = impl.RaggedPooler("MEAN")
    pooler.abort("nobody")
    pooler.step(rows[:4], [("A", 0, 4, 8)])
    pooler.abort("A")
    with pytest.raises(ValueError, match="request 'A' goes on at token 4, but MEAN has seen 0"):
        pooler.step(rows[4:], [("A", 4, 4, 8)])


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_cache_hit_is_refused(impl, kind):
    """The cache has K and V of 16 tokens. It does not have what was computed above them."""
    [rows] = prompts_of((20,)).values()
    pooler = impl.RaggedPooler(kind)
    if kind == "LAST":
        assert np.allclose(pooler.step(rows[16:], [("A", 16, 4, 20)])["A"], rows[-1])
        return
    words = f"request 'A' goes on at token 16, but {kind} has seen 0: its hidden states are not in the KV cache"
    with pytest.raises(ValueError, match=re.escape(words)):
        pooler.step(rows[16:], [("A", 16, 4, 20)])
    pooler.step(rows[:4], [("B", 0, 4, 20)])
    with pytest.raises(ValueError, match=f"request 'B' goes on at token 16, but {kind} has seen 4"):
        pooler.step(rows[16:], [("B", 16, 4, 20)])


@pytest.mark.parametrize("kind", ["CLS", "MEAN"])
def test_a_refusal_changes_nothing(impl, kind):
    a, b = prompts_of((8, 8)).values()
    pooler = impl.RaggedPooler(kind)
    pooler.step(a[:3], [("A", 0, 3, 8)])
    with pytest.raises(ValueError, match="request 'B' goes on at token 2"):
        pooler.step(np.concatenate([a[3:6], b[2:4]]), [("A", 3, 3, 8), ("B", 2, 2, 8)])
    with pytest.raises(ValueError, match="lens must add up"):
        pooler.step(a[3:6], [("A", 3, 4, 8)])
    assert np.allclose(pooler.step(a[3:], [("A", 3, 5, 8)])["A"], wanted(a, kind), atol=1e-5), "half of it was done"


def test_little_is_kept(impl):
    """A long prompt in many chunks: a few rows, not all of them."""
    rows, pooler = prompts_of((600,))["R0"], impl.RaggedPooler("MEAN")
    for at in range(0, 599, 5):
        pooler.step(rows[at : at + 5].copy(), [("A", at, min(5, 599 - at), 600)] if at < 595 else [("A", at, 5, 601)])
    seen, todo, size = set(), [vars(pooler)], 0
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            size += each.size
        elif isinstance(each, dict):
            todo += [*each.values()]
        elif isinstance(each, (list, tuple, set)):
            todo += list(each)
        elif hasattr(each, "__dict__"):
            todo.append(vars(each))
    assert size <= 60, (
        f"after 600 tokens of 6 numbers the pooler keeps {size} numbers. This looks like *Keeping the rows*"
    )


def test_inputs_stay(impl):
    rows = prompts_of((8,))["R0"]
    before, batch, lens = rows.copy(), [("A", 0, 8, 8)], [8]
    for kind in KINDS:
        impl.RaggedPooler(kind).step(rows, batch)
        impl.pool(rows, lens, kind)[:] = 0
        found = impl.RaggedPooler(kind).step(rows, batch)["A"]
        found[:] = 0
    impl.embed(rows)
    impl.embed(rows, 2, normalize=False)[:] = 0
    assert np.array_equal(rows, before) and batch == [("A", 0, 8, 8)] and lens == [8], "the caller's array was changed"


# ---- the vector that goes out --------------------------------------------------------------------------------------


def test_embed(impl):
    rows = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 5.0]], np.float32)
    assert np.allclose(impl.embed(rows), rows / np.array([[13.0], [5.0]]))
    assert np.allclose(impl.embed(rows, 3), impl.embed(rows))
    cut = impl.embed(rows, 2)
    assert np.allclose(cut, [[0.6, 0.8], [0, 0]]), f"(3, 4, 12) in two dimensions: {cut[0]}; its length must be 1"
    assert np.array_equal(impl.embed(rows, 1, normalize=False), rows[:, :1])
    assert impl.embed(rows.astype(np.float16)).dtype == np.float32 and impl.embed(rows[:0]).shape == (0, 3)


# ---- doors ---------------------------------------------------------------------------------------------------------


def test_doors(impl):
    hidden = np.ones((4, 3), np.float32)
    for make in (lambda: impl.pool(hidden, [4], "MAX"), lambda: impl.RaggedPooler("MAX")):
        with pytest.raises(ValueError, match="pooling must be one of CLS, LAST, MEAN, got 'MAX'"):
            make()
    with pytest.raises(ValueError, match="lens must add up to the 4 rows of hidden, got 3"):
        impl.pool(hidden, [2, 1], "MEAN")
    for lens in ([4, 0], [5, -1]):
        with pytest.raises(ValueError, match="every request must have at least one token"):
            impl.pool(hidden, lens, "LAST")
    with pytest.raises(ValueError, match="every request must have at least one token"):
        impl.RaggedPooler("LAST").step(hidden, [("A", 0, 4, 9), ("B", 0, 0, 9)])
    for dimensions in (4, 0, -1):
        with pytest.raises(ValueError, match=f"dimensions must be from 1 to 3, got {dimensions}"):
            impl.embed(hidden, dimensions)


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_pocket_cls_is_one_vector(impl):
    hidden = given.hidden_of_pocket()[:3]
    vectors = impl.pool(np.concatenate(hidden), [len(rows) for rows in hidden], "CLS")
    found, predicted = cosine(vectors[0], vectors[1]), impl.predicted_cls_cosine()
    assert abs(predicted - found) <= 0.02, (
        f"you predicted {predicted}; {given.QUESTIONS[0]!r} and {given.QUESTIONS[1]!r} have {found:.4f}. "
        "Whom has the first token of a causal model seen?"
    )


def test_pocket_last_chunk(impl):
    rows = given.hidden_of_pocket()[3]
    pooler = impl.RaggedPooler("MEAN")
    assert pooler.step(rows[:64].copy(), [("A", 0, 64, 160)]) == {} == pooler.step(rows[64:128], [("A", 64, 64, 160)])
    whole = pooler.step(rows[128:], [("A", 128, 32, 160)])["A"]
    assert np.allclose(whole, rows.mean(axis=0), atol=1e-4)
    found, predicted = cosine(whole, rows[128:].mean(axis=0)), impl.predicted_last_chunk()
    assert abs(predicted - found) <= 0.06, f"you predicted {predicted}; it is {found:.3f}"
