"""Lab 00-05: a whole model against the engine's, in what it computes and not only in what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from course import fixtures
from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = load(HERE / "demo.py").POCKET
QUESTIONS = ["What is a KV block?", "47 + 85", "Who are you?", "What is the difference between prefill and decode?"]
GATE = 1e-4  # float32, eight layers: measured 1e-5; the smallest listed mistake is off by 1e-1


def close(got, want, what, atol=1e-6):
    """Numbers and shapes. One test asks for the type, so that a type which is lost once makes one test red."""
    kind, want = getattr(got, "dtype", None), np.asarray(want)
    fixtures.close(got, want.astype(kind) if kind in (np.float32, np.float64) else want, what, atol)


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(scope="session")
def checkpoint():
    config, weights = load(HERE / "demo.py").load_pocket()
    for array in weights.values():
        array.flags.writeable = False
    return config, weights


@pytest.fixture(scope="session")
def engine():
    """The engine, with its answers: (llm, prompts, answers of at most 34 tokens), computed once."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(POCKET)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    outputs = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=34), use_tqdm=False)
    return llm, [tuple(o.prompt_token_ids) for o in outputs], [tuple(o.outputs[0].token_ids) for o in outputs]


class Naive:
    """Attention written out head by head and token by token, over one text in one call; it keeps what came by."""

    def __init__(self):
        self.seen = {}

    def __call__(self, layer, q, k, v):
        self.seen[layer] = (k.copy(), v.copy())
        out, group = np.zeros_like(q), q.shape[1] // k.shape[1]
        for h in range(q.shape[1]):
            for t in range(len(q)):
                scores = k[: t + 1, h // group] @ q[t, h] / np.sqrt(q.shape[2])
                weights = np.exp(scores - scores.max())
                out[t, h] = weights @ v[: t + 1, h // group] / weights.sum()
        return out.reshape(len(q), -1)


@pytest.fixture(scope="session")
def truth(engine):
    """33 tokens through the engine's model: (ids, hidden states, layer -> (keys, values))."""
    llm, prompts, answers = engine
    ids = np.array([*prompts[0], *answers[0]][:33])
    attn = Naive()
    hidden = np.array(llm.llm_engine.model.forward(ids, np.arange(33), attn))
    return ids, hidden, attn.seen


# ---- piece by piece -------------------------------------------------------------------------------------------------


def test_rms_norm_by_hand(impl):
    for dtype in (np.float32, np.float64):
        x, weight = np.array([[3.0, 4.0], [0.001, 0.001]], dtype), np.array([1.0, 2.0], dtype)
        before = x.copy(), weight.copy()
        want = np.array([[0.8485275, 2.2627402], [0.3015113, 0.6030227]], dtype)
        close(impl.rms_norm(x, weight, 1e-5), want, "rms_norm of [3, 4] and [.001, .001]")
        assert np.array_equal(x, before[0]) and np.array_equal(weight, before[1]), "rms_norm changed its arguments"
    close(impl.rms_norm(np.full((1, 2), 0.1), np.ones(2), 0.03), np.full((1, 2), 0.5), "a second eps, 0.03")
    alone = impl.rms_norm(normal(2, 3, 8), normal(8, seed=1), 1e-5)[1, 2]
    close(impl.rms_norm(normal(2, 3, 8)[1, 2], normal(8, seed=1), 1e-5), alone, "one row alone")


def test_rope_by_hand(impl):
    for dtype in (np.float32, np.float64):
        x = np.zeros((2, 1, 4), dtype)
        x[:, 0, 0], x[:, 0, 3] = 1, 1
        before = x.copy()
        slow = 1 / 10.0  # 100 ** (-2 / 4)
        want = [[1, 0, 0, 1], [np.cos(1), -np.sin(slow), np.sin(1), np.cos(slow)]]
        got = impl.rope(x, np.array([0, 1]), 100.0)
        close(got, np.array(want, dtype)[:, None], "rope of (1, 0, 0, 1) at positions 0 and 1, theta 100")
        assert np.array_equal(x, before), "rope changed its argument"
    x = normal(3, 2, 8, seed=4, dtype=np.float64)
    swapped = impl.rope(x[::-1].copy(), np.array([9, 4, 7]), 1e4)[::-1]
    close(impl.rope(x, np.array([7, 4, 9]), 1e4), swapped, "positions in another order")


def test_rope_knows_distances_only(impl):
    q, k = normal(1, 1, 64, seed=1, dtype=np.float64), normal(1, 1, 64, seed=2, dtype=np.float64)

    def score(at, of):
        return float(np.vdot(impl.rope(q, np.array([at]), 1e4), impl.rope(k, np.array([of]), 1e4)))

    assert abs(score(5, 3) - score(1005, 1003)) < 1e-9, "distance 2 scores otherwise at 1005 than at 5"
    assert abs(score(5, 3) - score(3, 5)) > 1e-3, "looking back two tokens and looking ahead two score the same"


def test_attention_by_hand(impl):
    """The worked example of the guide, §0.6."""
    k = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[:, None]
    v = np.array([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]])[:, None]
    close(impl.attention(np.array([[[1.0, 0.0]]]), k, v), np.array([[6.0167, 3.9833]]), "the guide's example", 1e-4)


def test_attention_sees_no_future(impl):
    q, k, v = normal(6, 4, 8), normal(6, 2, 8, seed=1), normal(6, 2, 8, seed=2)
    before = [a.copy() for a in (q, k, v)]
    full = impl.attention(q, k, v)
    close(full, Naive()(0, q, k, v), "attention of 6 tokens", 1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(before, (q, k, v), strict=True)), "attention changed its arguments"
    k2, v2 = k.copy(), v.copy()
    k2[4:], v2[4:] = 99, 99
    close(impl.attention(q, k2, v2)[:4], full[:4], "tokens 0 to 3, after a change of tokens 4 and 5")


def test_attention_groups(impl):
    """Every value is the number of its head: who reads whom can be read off."""
    v = np.repeat(np.arange(2.0)[None, :, None], 3, axis=0).repeat(8, axis=2)
    read = impl.attention(normal(3, 4, 8, dtype=np.float64), normal(3, 2, 8, dtype=np.float64), v).reshape(3, 4, 8)
    heads = read[0, :, 0].round(6).tolist()
    assert heads == [0, 0, 1, 1], f"got KV heads {heads} for query heads 0 to 3, expected [0, 0, 1, 1]"
    close(
        impl.attention(normal(5, 6, 4), normal(5, 2, 4, seed=1), normal(5, 2, 4, seed=2)),
        Naive()(0, normal(5, 6, 4), normal(5, 2, 4, seed=1), normal(5, 2, 4, seed=2)),
        "6 query heads on 2",
        1e-5,
    )


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_attention_of_the_last_tokens(impl, tokens):
    q, k, v = normal(7, 4, 8), normal(7, 2, 8, seed=1), normal(7, 2, 8, seed=2)
    close(impl.attention(q[-tokens:], k, v), Naive()(0, q, k, v)[-tokens:], f"the last {tokens} queries of 7", 1e-5)


def test_attention_survives_large_scores(impl):
    q = np.full((2, 2, 4), 300, np.float32)
    q[1] = -300
    k, v = np.full((2, 1, 4), 300, np.float32), normal(2, 1, 4)
    want = np.stack([np.tile(v[0, 0], 2), np.tile(v.mean(axis=0)[0], 2)])
    close(impl.attention(q, k, v), want, "scores of 180,000 in one row, and of -180,000 in the next")
    close(impl.attention(q[::-1].copy(), k, v), want, "a first row whose one visible score is -180,000")


# ---- the whole model ------------------------------------------------------------------------------------------------


def looks_like(mine, ids, model):
    """A guess at what is wrong with the keys of layer 0."""
    for shift, name in ((1, "Positions from 1"), (-1, "Positions from -1")):
        attn = Naive()
        model.forward(ids, np.maximum(np.arange(33) + shift, 0), attn)
        if np.shape(mine) == (33, 2, 64) and np.abs(mine - attn.seen[0][0])[1:].max() < GATE:
            return f" (this looks like *{name}*)"
    return ""


def test_keys_and_values_equal_the_engines(impl, checkpoint, truth, engine):
    ids, _, theirs = truth
    attn = Naive()
    impl.forward(*checkpoint, ids, np.arange(33), attn)
    assert list(attn.seen) == list(theirs), f"attn was called for layers {list(attn.seen)}, expected 0 to 7 in order"
    for layer, pair in theirs.items():
        for name, mine, want in zip(("keys", "values"), attn.seen[layer], pair, strict=True):
            off = np.shape(mine) != want.shape or not np.abs(mine - want).max() <= GATE
            hint = looks_like(attn.seen[0][0], ids, engine[0].llm_engine.model) if off else ""
            close(mine, want, f"layer {layer}: {name}{hint}", GATE)


def test_hidden_states_equal_the_engines(impl, checkpoint, truth):
    ids, want, _ = truth
    hidden = impl.forward(*checkpoint, ids, np.arange(33), Naive())
    close(hidden, want, "hidden states after the last norm", GATE)
    logits = impl.compute_logits(*checkpoint, hidden[[3, 32]])
    close(logits, want[[3, 32]] @ checkpoint[1]["model.embed_tokens.weight"].T, "logits of two rows", 1e-2)


def test_same_tokens_without_a_cache(impl, checkpoint, engine):
    _, prompts, answers = engine
    for i, most in ((1, 34), (2, 5)):
        got = impl.generate(*checkpoint, list(prompts[i]), most, use_cache=False)
        want = list(answers[i][:most])
        assert got == want, f"{QUESTIONS[i]!r} without a cache: got {got}, expected {want}"


def test_same_tokens_with_a_cache(impl, checkpoint, engine):
    _, prompts, answers = engine
    for question, prompt, answer, most in zip(QUESTIONS, prompts, answers, (34, 34, 16, 16), strict=True):
        got, want = impl.generate(*checkpoint, list(prompt), most), list(answer[:most])
        assert got == want, f"{question!r} with a cache: got {got}, expected {want}"
        assert all(type(token) is int for token in got), "token ids are plain ints"


def watch(impl, monkeypatch):
    """Lists that fill up: positions of each call of `forward`, rows of each call of `compute_logits`."""
    calls, rows = [], []
    forward, logits = impl.forward, impl.compute_logits
    monkeypatch.setattr(impl, "forward", lambda c, w, i, p, a: (calls.append(np.array(p)), forward(c, w, i, p, a))[1])
    monkeypatch.setattr(impl, "compute_logits", lambda c, w, h: (rows.append(len(h)), logits(c, w, h))[1])
    return calls, rows


@pytest.mark.parametrize("use_cache", [True, False])
def test_work_with_and_without(impl, checkpoint, engine, monkeypatch, use_cache):
    calls, rows = watch(impl, monkeypatch)
    impl.generate(*checkpoint, list(engine[1][0]), 6, use_cache=use_cache)
    want = [13, 1, 1, 1, 1, 1] if use_cache else [13, 14, 15, 16, 17, 18]
    assert [len(each) for each in calls] == want, f"use_cache={use_cache}: rows of each call of forward"
    assert rows == [1] * 6, f"use_cache={use_cache}: got logits of {rows} rows, expected one row a token"


def test_positions_go_on(impl, checkpoint, engine, monkeypatch):
    calls, _ = watch(impl, monkeypatch)
    impl.generate(*checkpoint, list(engine[1][0]), 5)
    positions = np.concatenate(calls).tolist()
    lost = next((at for at in range(17) if at not in positions), None)
    lost_words = f": {lost} is missing" if lost is not None else ""
    assert positions == list(range(17)), (
        f"positions {positions}{lost_words}. The answer may still look right; the cache is not"
    )


def test_two_caches_do_not_mix(impl):
    first, second = impl.KVCache(), impl.KVCache()
    q, k, v = normal(3, 4, 8), normal(3, 2, 8, seed=1), normal(3, 2, 8, seed=2)
    assert (len(first), len(second)) == (0, 0), "a new cache holds no token"
    for layer in (0, 1):
        first(layer, q, k * (layer + 1), v)
    second(0, q[:1], k[:1], v[:1])
    second(1, q[:1], k[:1], v[:1])
    assert (len(first), len(second)) == (3, 1), f"caches hold {len(first)} and {len(second)} tokens, expected 3 and 1"
    got = first(1, q[:2], k[:2], v[:2])
    keys = np.concatenate([k * 2, k[:2]])
    whole = np.concatenate([np.zeros_like(q), q[:2]])
    close(got, Naive()(0, whole, keys, np.concatenate([v, v[:2]]))[3:], "3 tokens held, 2 new ones", 1e-5)


def test_a_token_is_held_when_all_layers_have_seen_it(impl):
    """`generate` asks for the length between two calls of `forward`; the engine may ask in the middle of one."""
    cache, lengths = impl.KVCache(), []
    q, k, v = normal(3, 4, 8), normal(3, 2, 8, seed=1), normal(3, 2, 8, seed=2)
    for tokens in (3, 2):
        for layer in range(3):
            cache(layer, q[:tokens], k[:tokens], v[:tokens])
            lengths.append(len(cache))
    assert lengths[2:] == [3, 3, 3, 5], (
        f"after each layer the cache held {lengths[2:]}, expected 3 until all have seen 5"
    )


def test_a_cache_owns_its_memory(impl):
    """The engine computes keys and values in scratch memory, which the next call overwrites."""
    cache = impl.KVCache()
    q, k, v = normal(3, 4, 8), normal(3, 2, 8, seed=1), normal(3, 2, 8, seed=2)
    want = Naive()(0, np.concatenate([q, q[:1]]), np.concatenate([k, k[:1]]), np.concatenate([v, v[:1]]))[3:]
    last = q[:1].copy(), k[:1].copy(), v[:1].copy()
    cache(0, q, k, v)
    k[:], v[:] = np.nan, np.nan
    again = [array.copy() for array in last]
    close(cache(0, *last), want, "a cache whose caller has reused the arrays", 1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(last, again, strict=True)), "the cache changed its arguments"


def test_the_config_counts(impl, checkpoint, truth):
    config, weights = checkpoint
    ids = truth[0][:4]

    def run(**changed):
        attn = Naive()
        hidden = impl.forward({**config, **changed}, weights, ids, np.arange(4), attn)
        return hidden, list(attn.seen)

    base = run()[0]
    theta = {"rope_theta": 500.0, "rope_parameters": {**config.get("rope_parameters", {}), "rope_theta": 500.0}}
    for name, changed in (("rope_theta", theta), ("rms_norm_eps", {"rms_norm_eps": 0.5})):
        assert np.abs(run(**changed)[0] - base).max() > 1e-2, f"another {name} in the config changes nothing"
    assert run(num_hidden_layers=3)[1] == [0, 1, 2], "num_hidden_layers of the config is 3"
    shapes = []

    def attn(layer, q, k, v):
        shapes.append((q.shape, k.shape, v.shape))
        return np.zeros((4, 256), np.float32)

    halved = {"head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 1}
    impl.forward({**config, **halved}, weights, ids, np.arange(4), attn)
    assert shapes == [((4, 8, 32), (4, 4, 32), (4, 4, 32))], "head_dim 32 cuts the same matrices into 8 and 4 heads"
    other = {**config, "eos_token_id": int(impl.generate(config, weights, ids.tolist(), 1)[0])}
    assert len(impl.generate(other, weights, ids.tolist(), 9)) == 1, (
        "another eos_token_id in the config changes nothing"
    )


def test_what_comes_in_decides_the_type(impl, checkpoint):
    config, weights = checkpoint
    for dtype in (np.float32, np.float64):
        typed, x = {name: array.astype(dtype) for name, array in weights.items()}, np.ones((2, 2, 64), dtype)
        cache, given = impl.KVCache(), {"rms_norm": impl.rms_norm(x, x[0, 0], 1e-5)}
        given |= {"rope": impl.rope(x, np.arange(2), 1e4), "attention": impl.attention(x, x, x)}

        def attn(layer, q, k, v, cache=cache, given=given):
            given |= {"q of forward": q, "k of forward": k, "v of forward": v}
            return cache(layer, q, k, v)

        hidden = impl.forward({**config, "num_hidden_layers": 1}, typed, np.array([5, 6]), np.arange(2), attn)
        given |= {"forward": hidden, "compute_logits": impl.compute_logits(config, typed, hidden)}
        given["KVCache"] = cache(0, *[x[:1]] * 3)
        got = {name: str(array.dtype) for name, array in given.items()}
        want = dict.fromkeys(got, np.dtype(dtype).name)
        assert got == want, f"{np.dtype(dtype)} came in; the root of a plain int, for one, is a float64 in numpy"


def test_ends(impl, checkpoint, engine):
    _, prompts, answers = engine
    for at in (0, -1):
        asked = {**checkpoint[0], "eos_token_id": prompts[1][at]}
        got = impl.generate(asked, checkpoint[1], list(prompts[1]), 3)
        assert got == list(answers[1][:3]), f"an end token in the prompt (its number {at}) ends nothing: got {got}"
    for n in (0, 1, 5):
        got = impl.generate(*checkpoint, list(prompts[1]), n)
        assert got == list(answers[1][:n]), f"max_tokens={n}: got {got}"


def test_empty_prompt(impl, checkpoint):
    with pytest.raises(ValueError, match=r"^prompt_ids must have at least one token, got 0$"):
        impl.generate(*checkpoint, [], 3)


def test_inputs_left_alone(impl, checkpoint, engine):
    """The weights are read-only here: `+=` on a view of the embedding raises."""
    prompt = list(engine[1][1])
    ids, positions = np.array(prompt), np.arange(len(prompt))
    file = (POCKET / "config.json").read_text(encoding="utf-8")
    config = json.loads(file)
    impl.generate(config, checkpoint[1], prompt, 2)
    impl.forward(config, checkpoint[1], ids, positions, Naive())
    impl.compute_logits(config, checkpoint[1], normal(1, 256))
    assert config == json.loads(file), "the config was changed"
    assert prompt == list(engine[1][1]), "generate changed the list of prompt ids"
    assert ids.tolist() == prompt and positions.tolist() == list(range(len(prompt))), "forward changed its arguments"
    small = {name: array[:2] if "embed" in name else array for name, array in checkpoint[1].items()}
    hidden = normal(1, 256)
    close(
        impl.compute_logits(checkpoint[0], small, hidden), hidden @ small["model.embed_tokens.weight"].T, "logits", 1e-4
    )


class Served:
    """The learner's forward pass in the dress of an engine's model."""

    def __init__(self, impl, checkpoint, model):
        self.impl, self.checkpoint, self.model = impl, checkpoint, model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def forward(self, input_ids, positions, attn):
        return self.impl.forward(*self.checkpoint, input_ids, positions, attn)

    def compute_logits(self, hidden, out=None):
        return self.impl.compute_logits(*self.checkpoint, hidden)


def test_serves_the_engine(impl, checkpoint, engine):
    """Three requests at once, prompts in pieces of a budget of 20 tokens: paged blocks under the learner's forward."""
    from mini_vllm import LLM, SamplingParams

    llm, prompts, answers = engine
    served = LLM(Served(impl, checkpoint, llm.llm_engine.model), max_num_batched_tokens=20, num_blocks=64)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts[:3]]
    outputs = served.generate(asked, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
    got = [list(output.outputs[0].token_ids) for output in outputs]
    assert got == [list(answer[:12]) for answer in answers[:3]], "three requests in one engine, on your forward"


# ---- the prediction: made first, judged last -------------------------------------------------------------------------


def test_your_prediction(impl, checkpoint, engine, monkeypatch):
    """Four models, each broken in one place, say what they say."""
    mine = impl.predicted_same()
    (config, weights), (_, prompts, answers) = checkpoint, engine
    assert set(mine) == {"far", "late", "sharp", "restart"}, f"got the keys {sorted(mine)}, expected the four given"
    sharp = {name: array * 8 if "q_proj" in name else array for name, array in weights.items()}
    sabotage = {
        "far": (lambda at: at + 1_000_000, weights),
        "late": (lambda at: at + 1 if len(at) == 1 else at, weights),
        "sharp": (lambda at: at, sharp),
        "restart": (lambda at: at - at[0], weights),
    }
    real, said = impl.forward, {}
    for name, (moved, its_weights) in sabotage.items():
        change = lambda c, w, ids, at, attn, moved=moved: real(c, w, ids, moved(at), attn)  # noqa: E731
        monkeypatch.setattr(impl, "forward", change)
        said[name] = impl.generate(config, its_weights, list(prompts[0]), 34) == list(answers[0][:34])
    if "".join("ny"[same] for same in said.values()) != "yynn":
        pytest.fail(
            "the broken models can be judged when yours is right: the other tests say what is not", pytrace=False
        )
    right = sum(mine[name] is said[name] for name in said)
    if right < 4:
        pytest.fail(
            f"got {right} of your 4 predictions right; which ones? Break your own model, and look", pytrace=False
        )
