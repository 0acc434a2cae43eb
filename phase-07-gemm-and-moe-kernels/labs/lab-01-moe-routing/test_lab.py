"""Lab 07-01: two programs for one layer, and the proof that they are one."""

from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close

POCKET_MOE = Path(__file__).resolve().parents[3] / "models" / "pocket-moe"
T, D, H, E, K = 32, 16, 24, 8, 2


def make(seed=0, tokens=T, num_experts=E):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, D))
    gate = rng.standard_normal((num_experts, D))
    experts = [(rng.standard_normal((D, H)), rng.standard_normal((H, D))) for _ in range(num_experts)]
    return x, gate, experts


# ---- routing -------------------------------------------------------------------------------------------------------


def test_the_worked_example(impl):
    """Two numbers per token, three experts: the page's arithmetic."""
    x = np.array([[2.0, 1.0], [0.0, 3.0]])
    gate = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    ids, w = impl.route(x, gate, 2)
    assert ids.tolist() == [[2, 0], [1, 2]], "logits [2, 1, 3] and [0, 3, 3]: of equals the smaller id first"
    assert np.allclose(w, [[0.7310586, 0.2689414], [0.5, 0.5]], atol=1e-7), "1 / (1 + e^-1), and an even split"


def test_weights_sum_to_one_and_follow_the_logits(impl):
    x, gate, _ = make()
    ids, w = impl.route(x, gate, K)
    logits = x @ gate.T
    assert ids.shape == w.shape == (T, K)
    assert np.allclose(w.sum(axis=1), 1) and (np.diff(w, axis=1) <= 0).all(), "best first"
    chosen = np.take_along_axis(logits, ids, axis=1)
    assert (chosen.min(axis=1) >= np.sort(logits, axis=1)[:, -K]).all(), "the k largest logits"
    assert all(len(set(row)) == K for row in ids.tolist()), "an expert is chosen once per token"


def test_softmax_first_and_renormalize_is_the_same(impl):
    """Upstream's order. Without the renormalization the weights of a token sum to less than 1."""
    x, gate, _ = make()
    ids, w = impl.route(x, gate, K)
    logits = x @ gate.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    kept = np.take_along_axis(p, ids, axis=1)
    sums = kept.sum(axis=1)
    assert np.abs(kept / sums[:, None] - w).max() < 1e-15
    assert 0.5 < sums.min() < 0.8 and sums.max() < 1.0


def test_ties_and_large_logits(impl):
    ids, w = impl.route(np.ones((3, D)), np.ones((E, D)), 3)
    assert ids.tolist() == [[0, 1, 2]] * 3 and np.allclose(w, 1 / 3)
    x, gate, _ = make()
    ids, w = impl.route(x * 1e4, gate, K)
    assert np.isfinite(w).all() and np.allclose(w.sum(axis=1), 1), "subtract the maximum before exp"


@pytest.mark.parametrize("k", [0, -1, E + 1])
def test_k_out_of_range(impl, k):
    x, gate, _ = make()
    with pytest.raises(ValueError, match="k must be 1 to 8"):
        impl.route(x, gate, k)
    with pytest.raises(ValueError, match="k must be 1 to 5"):
        impl.route(x, gate[:5], 6)


def test_types_and_arguments(impl):
    x, gate, experts = make()
    x, gate = x.astype(np.float32), gate.astype(np.float32)
    experts = [(a.astype(np.float32), b.astype(np.float32)) for a, b in experts]
    given = [each.copy() for each in (x, gate)]
    impl.route(wide_x := x.astype(float), wide_gate := gate.astype(float), K)
    close(wide_x, given[0].astype(float), "x after the call", 0)
    close(wide_gate, given[1].astype(float), "W_gate after the call", 0)
    ids, w = impl.route(x, gate, K)
    assert w.dtype == np.float32 and ids.dtype.kind == "i", "weights of the type of the logits"
    _, starts = impl.sort_by_expert(ids, E)
    kept = ids.copy(), starts.copy(), [(a.copy(), b.copy()) for a, b in experts]
    impl.sort_by_expert(ids, E)
    assert isinstance(impl.aligned_rows(starts, 16), int), "a whole number of rows"
    reference = impl.moe_forward_reference(x, experts, ids, w)
    close(impl.moe_forward_grouped(x, experts, ids, w), reference, "grouped, float32", 1e-3)
    assert reference.dtype == np.float32 and reference.shape == x.shape
    impl.expert_mlp(x, *experts[0])
    now = [x, gate, ids, starts, *[each for pair in experts for each in pair]]
    then = [*given, *kept[:2], *[each for pair in kept[2] for each in pair]]
    for a, b in zip(now, then, strict=True):
        close(a, b, "an argument after the calls", 0)


def test_k_may_be_all(impl):
    x, gate, _ = make()
    ids, w = impl.route(x, gate, E)
    assert sorted(ids[0].tolist()) == list(range(E)) and np.allclose(w.sum(axis=1), 1)
    assert impl.route(x, gate, 1)[1].tolist() == [[1.0]] * T


# ---- one expert, and the formula -----------------------------------------------------------------------------------


def test_expert_mlp(impl):
    x = np.array([[1.0, -1.0], [0.5, 2.0]])
    W1, W2 = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert impl.expert_mlp(x, W1, W2).tolist() == [[2.0, 1.0], [3.5, 5.0]], "hidden [1, 0, 1] and [0.5, 2, 3]"


def test_reference_by_hand(impl):
    """Expert e multiplies by e + 1 (inputs are positive, so the relu does nothing)."""
    x = np.array([[1.0, 2.0], [3.0, 1.0]])
    experts = [(np.eye(2), (e + 1) * np.eye(2)) for e in range(3)]
    ids, w = np.array([[0, 2], [1, 1]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    out = impl.moe_forward_reference(x, experts, ids, w)
    assert out.tolist() == [[2.5, 5.0], [6.0, 2.0]], "0.25 + 0.75 * 3 = 2.5 times; 2 times"


def test_reference_runs_one_row_at_a_time(impl, monkeypatch):
    x, gate, experts = make()
    ids, w = impl.route(x, gate, K)
    rows, original = [], impl.expert_mlp
    monkeypatch.setattr(impl, "expert_mlp", lambda r, *e: rows.append(len(r)) or original(r, *e))
    impl.moe_forward_reference(x, experts, ids, w)
    assert rows == [1] * (T * K), "64 tiny products: what grouping is there to avoid"


# ---- the permutation -----------------------------------------------------------------------------------------------


def test_permutation_of_the_upstream_example(impl):
    """The example in moe_align_block_size's docstring, without the padding."""
    ids = np.array([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]])
    order, starts = impl.sort_by_expert(ids, 5)
    assert order.tolist() == [3, 6, 9, 0, 4, 10, 1, 7, 11, 2, 5, 8]
    assert starts.tolist() == [0, 0, 3, 6, 9, 12], "expert 0 has nothing, and still a place"


def test_each_expert_gets_exactly_its_tokens(impl):
    x, gate, _ = make()
    ids, _ = impl.route(x, gate, K)
    order, starts = impl.sort_by_expert(ids, E)
    assert starts[-1] == T * K and sorted(order.tolist()) == list(range(T * K)), "nothing lost, nothing twice"
    for expert in range(E):
        tokens = order[starts[expert] : starts[expert + 1]] // K
        assert tokens.tolist() == np.nonzero((ids == expert).any(axis=1))[0].tolist()


def test_round_trip(impl):
    rng = np.random.default_rng(3)
    for _ in range(50):
        ids = rng.integers(0, 6, (int(rng.integers(1, 20)), int(rng.integers(1, 4))))
        order, starts = impl.sort_by_expert(ids, 7)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        assert (ids.reshape(-1)[order][back] == ids.reshape(-1)).all(), "sorting, then unsorting, is nothing"
        assert (np.diff(ids.reshape(-1)[order]) >= 0).all() and len(starts) == 8


# ---- grouped -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_experts", "k"), [(1, 1), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 8)])
def test_grouped_equals_reference(impl, num_experts, k):
    for seed in range(5):
        x, gate, experts = make(seed, num_experts=num_experts)
        ids, w = impl.route(x, gate, k)
        reference = impl.moe_forward_reference(x, experts, ids, w)
        assert np.abs(impl.moe_forward_grouped(x, experts, ids, w) - reference).max() < 1e-10


def test_an_expert_twice_in_one_row(impl):
    """A real top-k never does this. The formula says what it would mean: the expert counts twice."""
    x, _, experts = make(tokens=4)
    ids, w = np.array([[3, 3], [1, 1], [0, 3], [7, 7]]), np.full((4, 2), 0.5)
    grouped = impl.moe_forward_grouped(x, experts, ids, w)
    assert np.abs(grouped - impl.moe_forward_reference(x, experts, ids, w)).max() < 1e-10
    assert np.abs(grouped[1] - impl.expert_mlp(x[1:2], *experts[1])[0]).max() < 1e-10


def test_one_call_for_each_busy_expert(impl, monkeypatch):
    x, _, experts = make(tokens=6)
    ids = np.array([[0, 5], [5, 0], [5, 2], [2, 5], [5, 0], [0, 5]])
    calls, original = [], impl.expert_mlp
    monkeypatch.setattr(impl, "expert_mlp", lambda r, *e: calls.append(len(r)) or original(r, *e))
    impl.moe_forward_grouped(x, experts, ids, np.full((6, 2), 0.5))
    assert calls == [4, 2, 6], "experts 0, 2 and 5; the five idle ones are not called"


def test_inputs_stay_as_they_were(impl):
    x, gate, experts = make()
    ids, w = impl.route(x, gate, K)
    before = [x.copy(), gate.copy(), ids.copy(), w.copy()]
    impl.moe_forward_grouped(x, experts, ids, w)
    impl.moe_forward_reference(x, experts, ids, w)
    assert all((a == b).all() for a, b in zip(before, [x, gate, ids, w], strict=True))


# ---- blocks --------------------------------------------------------------------------------------------------------


def test_aligned_rows(impl):
    assert impl.aligned_rows(np.array([0, 3, 3, 7, 12]), 4) == 4 + 0 + 4 + 8
    assert impl.aligned_rows(np.array([0, 7, 7, 8]), 1) == 8, "blocks of one: no padding"
    assert impl.aligned_rows(np.array([0, 1, 257]), 256) == 512, "blocks of any size"
    assert impl.aligned_rows(np.zeros(4, dtype=int), 16) == 0


@pytest.mark.parametrize(
    ("tokens", "num_experts", "k", "block", "rows"), [(8, 64, 6, 16, 528), (4096, 8, 2, 128, 8576)]
)
def test_padding_is_waste_in_decode_and_nothing_in_prefill(impl, tokens, num_experts, k, block, rows):
    rng = np.random.default_rng(0)
    ids, _ = impl.route(rng.standard_normal((tokens, D)), rng.standard_normal((num_experts, D)), k)
    _, starts = impl.sort_by_expert(ids, num_experts)
    assert impl.aligned_rows(starts, block) == rows, f"for {tokens * k} real rows"


# ---- against the engine --------------------------------------------------------------------------------------------


def test_the_engine_chooses_and_sorts_the_same(impl):
    """Ids, weights, order and blocks of mini_vllm on random logits (it returns the weights first, as upstream)."""
    from mini_vllm import fused_topk, moe_align_block_size

    rng = np.random.default_rng(11)
    for num_experts, k in ((4, 1), (8, 2), (16, 4), (64, 8)):
        x, gate = rng.standard_normal((20, D)), rng.standard_normal((num_experts, D))
        ids, w = impl.route(x, gate, k)
        engine_w, engine_ids = fused_topk(x @ gate.T, k, renormalize=True)
        assert (engine_ids == ids).all() and np.abs(engine_w - w).max() < 1e-12
        order, starts = impl.sort_by_expert(ids, num_experts)
        assert moe_align_block_size(ids, 1, num_experts)[0][: len(order)].tolist() == order.tolist()
        for block in (4, 16):
            assert moe_align_block_size(ids, block, num_experts)[2] == impl.aligned_rows(starts, block)


def swiglu(rows, w13, w2):
    """The expert of real models: gate and up in one matrix, then down."""
    gate, up = np.split(rows @ w13.T, 2, axis=1)
    return (gate / (1 + np.exp(-gate)) * up) @ w2.T


def test_your_grouping_runs_the_engines_experts(impl, monkeypatch):
    """Put the SwiGLU expert of real models in the place of the lab's: the two layers agree."""
    from mini_vllm import fused_experts

    rng = np.random.default_rng(12)
    w13, w2 = rng.standard_normal((E, 2 * H, D)) / 4, rng.standard_normal((E, D, H)) / 4
    x, gate = rng.standard_normal((T, D)), rng.standard_normal((E, D))
    ids, w = impl.route(x, gate, K)
    monkeypatch.setattr(impl, "expert_mlp", swiglu)
    mine = impl.moe_forward_grouped(x, list(zip(w13, w2, strict=True)), ids, w)
    assert np.abs(mine - fused_experts(x, w13, w2, w, ids)).max() < 1e-10


def test_your_layer_serves_a_real_model(impl, monkeypatch):
    """All six MoE layers of models/pocket-moe by your code, router included: the same answer."""
    from mini_vllm import LLM, SamplingParams, SparseMoeBlock

    if not POCKET_MOE.is_dir():
        pytest.skip("models/pocket-moe is not here")
    llm = LLM(model=POCKET_MOE, dtype="float64", enforce_eager=True)  # the model as it stands in its file
    question = [{"role": "user", "content": "What is a KV block?"}]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    expected = llm.chat(question, params, use_tqdm=False)[0].outputs[0].token_ids
    calls = []

    def forward(self, x, *_):
        calls.append(len(x))
        ids, w = impl.route(x, self.gate.weight, self.experts.top_k)
        return impl.moe_forward_grouped(x, list(zip(self.experts.w13, self.experts.w2, strict=True)), ids, w)

    monkeypatch.setattr(impl, "expert_mlp", swiglu)
    monkeypatch.setattr(SparseMoeBlock, "forward", forward)
    assert llm.chat(question, params, use_tqdm=False)[0].outputs[0].token_ids == expected
    assert len(calls) == 6 * len(expected), "six layers, once for each step"
