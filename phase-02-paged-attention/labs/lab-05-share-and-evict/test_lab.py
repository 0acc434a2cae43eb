"""Lab 02-05: a life predicted on paper, then every reference count asserted."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import KVCacheManager, KVMismatchError, KVOracle, OracleRow, RequestStatus

PROMPT = list(range(100, 132))  # 32 tokens, 8 blocks of 4


def manager(num_blocks=30, caching=True, block_size=4):
    return KVCacheManager(num_blocks, block_size, caching)


def table(kv, request):
    return kv.get_block_ids(request.request_id)[0]


def told_by_the_engine(impl, length):
    """The story of `predicted`, by the engine's manager alone: D's table, whether a prompt of `length` tokens that
    begins as B's would be admitted then, and the queue at the end."""
    kv, tables = manager(10), {}

    def arrive(name, tokens):
        request = impl.make_request(kv, name, tokens)
        hits, cached = kv.get_computed_blocks(request)
        if kv.allocate_slots(request, len(tokens) - cached, cached, hits) is None:
            return None
        request.num_computed_tokens = len(tokens)
        tables[name] = list(table(kv, request))
        return request

    of_a, of_b = list(range(10)), [*range(9), 50, 51, 52, 53]
    a, b = arrive("a", of_a), arrive("b", of_b)
    kv.free(a)
    arrive("c", list(range(60, 68)))
    kv.free(b)
    d = arrive("d", of_a)
    if arrive("e", of_b + list(range(70, 57 + length))) is not None:
        return tables["d"], True, None
    kv.free(d)
    return tables["d"], False, [block.block_id for block in kv.block_pool.free_block_queue.get_all_free_blocks()]


def test_your_prediction(impl):
    """Compared before anything is shown: what is wrong is named, and what would be right is not."""
    d_table, longest, queue = impl.predicted()
    longest_possible = max(n for n in range(14, 40) if told_by_the_engine(impl, n)[1])
    right_table, _, right_queue = told_by_the_engine(impl, longest_possible + 1)
    wrong = []
    if list(d_table) != right_table:
        same = sum(x == y for x, y in zip(d_table, right_table))  # noqa: B905  (hers may be shorter)
        wrong.append(f"D's block table (entries that are right: {same})")
    if longest != longest_possible:
        wrong.append(f"the longest prompt, which is too {'low' if longest < longest_possible else 'high'}")
    if list(queue) != right_queue:
        same = next((i for i, (x, y) in enumerate(zip(queue, right_queue)) if x != y), "all")  # noqa: B905
        wrong.append(f"the free queue (right from the front: {same})")
    if wrong:
        pytest.fail(f"predicted() is wrong about {', and '.join(wrong)}", pytrace=False)


def test_first_request_populates_cold_cache(impl):
    kv = manager()
    a, cached = impl.prefill(kv, "a", PROMPT)
    assert cached == 0 and table(kv, a) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert impl.ref_counts(kv, a) == [1] * 8
    assert (a.num_computed_tokens, a.num_tokens, a.status) == (32, 32, RequestStatus.RUNNING)
    assert a.request_id == "a" and a.all_token_ids == PROMPT


def test_identical_prompt_shares_all_but_the_tail_block(impl):
    kv = manager()
    a, _ = impl.prefill(kv, "a", PROMPT)
    b, cached = impl.prefill(kv, "b", PROMPT)
    assert cached == 28, "at least one token must be computed, for its logits: 31 tokens are 7 full blocks"
    assert table(kv, b) == [1, 2, 3, 4, 5, 6, 7, 9], "seven shared ids, and one block of its own"
    assert impl.ref_counts(kv, b) == [2] * 7 + [1] and impl.ref_counts(kv, a) == [2] * 7 + [1]
    assert b.num_computed_tokens == 32


@pytest.mark.parametrize(("block_size", "hit"), [(1, 31), (8, 24), (16, 16), (32, 0)])
def test_hits_are_counted_in_tokens(impl, block_size, hit):
    kv = manager(70, block_size=block_size)
    impl.prefill(kv, "a", PROMPT)
    b, cached = impl.prefill(kv, "b", PROMPT)
    assert cached == hit, f"blocks of {block_size}: whole blocks of at most 31 tokens"
    assert (len(table(kv, b)), b.num_computed_tokens) == (32 // block_size, 32), "slots for the prompt, and no more"
    assert impl.ref_counts(kv, b) == [2] * (hit // block_size) + [1] * ((32 - hit) // block_size)


def test_diverging_prompt_shares_only_the_common_prefix(impl):
    kv = manager()
    a, _ = impl.prefill(kv, "a", PROMPT)
    c, cached = impl.prefill(kv, "c", PROMPT[:16] + list(range(900, 916)))
    assert cached == 16 and table(kv, c)[:4] == table(kv, a)[:4]
    assert not set(table(kv, c)[4:]) & set(table(kv, a)[4:])
    d, cached = impl.prefill(kv, "d", [1, *PROMPT[1:]])
    assert cached == 0, "one other token at the front, and the hash of every block behind it is another"
    assert impl.ref_counts(kv, d) == [1] * 8


def test_free_order_evicts_tails_before_shared_prefix(impl):
    kv = manager(10)
    a, _ = impl.prefill(kv, "a", PROMPT)
    b, _ = impl.prefill(kv, "b", PROMPT)
    assert impl.free_order(kv) == []
    impl.finish(kv, a)
    assert impl.free_order(kv) == [8], "of A's blocks only the private tail has no user left"
    impl.finish(kv, b)
    assert impl.free_order(kv) == [8, 9, 7, 6, 5, 4, 3, 2, 1], "tails first, the head of the shared prefix last"
    assert set(impl.block_states(kv).values()) == {"cached"}
    e, _ = impl.prefill(kv, "e", list(range(500, 508)))
    assert table(kv, e) == [8, 9], "the two private tails pay for the newcomer"
    f, _ = impl.prefill(kv, "f", list(range(600, 624)))
    assert table(kv, f) == [7, 6, 5, 4, 3, 2] and impl.free_order(kv) == [1]
    assert impl.block_states(kv)[1] == "cached"
    hits, cached = kv.get_computed_blocks(impl.make_request(kv, "g", PROMPT))
    assert cached == 4 and hits.blocks[0][0].block_id == 1, "the head, which most requests share, is the last to go"


def test_cached_free_blocks_are_revived_not_recomputed(impl):
    kv = manager()
    a, _ = impl.prefill(kv, "a", PROMPT)
    before = table(kv, a)
    impl.finish(kv, a)
    assert a.status == RequestStatus.FINISHED_LENGTH_CAPPED and table(kv, a) == []
    assert impl.free_order(kv) == [*range(9, 30), 8, 7, 6, 5, 4, 3, 2, 1]
    d, cached = impl.prefill(kv, "d", PROMPT)
    assert cached == 28 and table(kv, d)[:7] == before[:7], "the same seven blocks, out of the end of the queue"
    assert impl.ref_counts(kv, d) == [1] * 8
    assert impl.free_order(kv) == [*range(10, 30), 8]


def test_caching_disabled_means_no_sharing(impl):
    kv = manager(caching=False)
    _, first = impl.prefill(kv, "a", PROMPT)
    b, second = impl.prefill(kv, "b", PROMPT)
    assert (first, second) == (0, 0) and impl.ref_counts(kv, b) == [1] * 8
    assert set(impl.block_states(kv).values()) == {"used", "empty"}
    impl.finish(kv, b)
    assert impl.block_states(kv)[9] == "empty", "no hash was ever set"
    assert impl.cache_hit_rate(kv) == 0.0


def test_states(impl):
    kv = manager(12)
    assert impl.block_states(kv) == dict.fromkeys(range(1, 12), "empty")
    a, _ = impl.prefill(kv, "a", PROMPT[:10])
    b, _ = impl.prefill(kv, "b", PROMPT[:10])
    states = impl.block_states(kv)
    assert [states[i] for i in (1, 2, 3, 4, 5)] == ["shared", "shared", "used", "used", "empty"]
    impl.finish(kv, a)
    states = impl.block_states(kv)
    assert [states[i] for i in (1, 2, 3, 4)] == ["used", "used", "empty", "used"], (
        "block 3 held two tokens of four: it was never full, so it has no hash and nobody can find it"
    )
    c, _ = impl.prefill(kv, "c", PROMPT[:10])
    e, _ = impl.prefill(kv, "e", PROMPT[:10])
    assert impl.ref_counts(kv, e) == [3, 3, 1] and impl.block_states(kv)[1] == "shared"
    for request in (b, c, e):
        impl.finish(kv, request)
    assert impl.block_states(kv) == {i: "cached" if i < 3 else "empty" for i in range(1, 12)}


def test_decode_takes_a_block_every_fourth_token(impl):
    kv = manager()
    a, _ = impl.prefill(kv, "a", PROMPT[:6])
    lengths, hashed = [], []
    for token in range(7):
        assert impl.decode(kv, a, token) is True
        lengths.append(len(table(kv, a)))
        hashed.append(sum(block.block_hash is not None for block in kv.get_blocks("a").blocks[0]))
    assert lengths == [2, 2, 3, 3, 3, 3, 4], "tokens 9 and 13 open a block"
    assert hashed == [1, 2, 2, 2, 2, 3, 3], "a block is cached by the token that fills it"
    assert (a.num_computed_tokens, a.num_tokens) == (13, 13)
    assert a.output_token_ids == list(range(7)), "the tokens that were given, each in its turn"
    again, cached = impl.prefill(kv, "again", a.all_token_ids)
    assert cached == 12, "generated tokens are content like any other: a follow-up turn hits them"
    assert table(kv, again)[:3] == table(kv, a)[:3]


def test_failed_allocation_leaves_no_trace(impl):
    """The refusal that counts its own hits: 9 blocks are free, 8 of them are the hits, and 2 more are needed."""
    kv = manager(10)
    a, _ = impl.prefill(kv, "a", PROMPT)
    impl.finish(kv, a)
    order, states = impl.free_order(kv), impl.block_states(kv)
    assert impl.prefill(kv, "b", PROMPT + list(range(8))) is None
    assert impl.free_order(kv) == order and impl.block_states(kv) == states and "b" not in kv.req_to_blocks
    c, cached = impl.prefill(kv, "c", PROMPT + list(range(4)))
    assert cached == 32 and len(table(kv, c)) == 9, "with one block less it fits exactly"
    states = impl.block_states(kv)
    assert impl.decode(kv, c, 5) is False
    assert (c.num_computed_tokens, c.num_tokens, len(table(kv, c))) == (36, 37, 9)
    assert c.output_token_ids == [5], "the token stays appended, and waits for its slot"
    assert c.status == RequestStatus.RUNNING and impl.ref_counts(kv, c) == [1] * 9 and impl.block_states(kv) == states


def test_looking_changes_nothing(impl):
    kv = manager(12)
    a, _ = impl.prefill(kv, "a", PROMPT[:10])
    stats = kv.prefix_cache_stats
    before = [(b.ref_cnt, b.block_hash) for b in kv.block_pool.blocks], table(kv, a), stats.queries, stats.hits
    for _ in range(2):
        assert impl.ref_counts(kv, a) == [1, 1, 1] and impl.free_order(kv) == list(range(4, 12))
        assert list(impl.block_states(kv)) == list(range(1, 12)) and impl.cache_hit_rate(kv) == 0.0
    after = [(b.ref_cnt, b.block_hash) for b in kv.block_pool.blocks], table(kv, a), stats.queries, stats.hits
    assert before == after, "users, hashes, the table and the statistics are as before"


def test_hit_rate_counts_tokens(impl):
    kv = manager()
    assert impl.cache_hit_rate(kv) == 0.0
    impl.prefill(kv, "a", PROMPT)
    assert impl.cache_hit_rate(kv) == 0.0
    impl.prefill(kv, "b", PROMPT)
    assert impl.cache_hit_rate(kv) == pytest.approx(28 / 64)
    stats = kv.prefix_cache_stats
    assert (stats.queries, stats.hits) == (64, 28), "each prompt is looked up once: whoever asks twice counts twice"


def watch(kv, oracle, requests):
    """Let the oracle write and read what a step over these (request, computed before) would."""
    oracle.on_step([
        OracleRow(r.request_id, r.all_token_ids, before, r.num_computed_tokens - before, table(kv, r))
        for r, before in requests
    ])  # fmt: skip


def test_nobody_ever_reads_somebody_elses_tokens(impl):
    """Two hundred random events in a tiny pool, with shared prefixes; the oracle checks every slot that is read."""
    rng = np.random.default_rng(1)
    kv, oracle, running = manager(14), KVOracle(14, 4), []
    hits = refused = 0
    for event in range(200):
        what = rng.integers(3)
        if what == 0:
            shared, own = int(rng.integers(0, 17)), int(rng.integers(1, 9))
            tokens = PROMPT[:shared] + rng.integers(0, 50, own).tolist()
            admitted = impl.prefill(kv, f"r{event}", tokens)
            if admitted is None:
                refused += 1
                continue
            running.append(admitted[0])
            hits += admitted[1]
            watch(kv, oracle, [admitted])
        elif running:
            request = running[int(rng.integers(len(running)))]
            before = request.num_computed_tokens
            if what == 1 and impl.decode(kv, request, int(rng.integers(50))):
                watch(kv, oracle, [(request, before)])
            else:
                impl.finish(kv, request)
                running.remove(request)
        users = [i for r in running for i in table(kv, r)]
        for request in running:
            assert impl.ref_counts(kv, request) == [users.count(i) for i in table(kv, request)]
        assert sorted(impl.free_order(kv)) == [i for i in range(1, 14) if i not in users]
    assert hits > 100 and refused > 5 and oracle.num_reads_checked > 1000, "the run was worth checking"


def test_the_oracle_would_notice(impl, monkeypatch):
    """Without the parent in the hash, 'xx|cd' hits the block of 'ab|cd'. Equal ids, foreign content."""
    from mini_vllm.core import kv_cache_utils

    chained = kv_cache_utils.hash_block_tokens
    monkeypatch.setattr(kv_cache_utils, "hash_block_tokens", lambda parent, tokens, extra=None: chained(None, tokens))
    kv, oracle = manager(), KVOracle(30, 4)
    watch(kv, oracle, [impl.prefill(kv, "a", [1, 1, 1, 1, 5, 5, 5, 5, 9])])
    watch(kv, oracle, [impl.prefill(kv, "b", [2, 2, 2, 2, 3])])
    b = impl.prefill(kv, "c", [2, 2, 2, 2, 5, 5, 5, 5, 9])
    assert b[1] == 8
    with pytest.raises(KVMismatchError, match="'c' would read foreign keys and values at position 4: block 2, slot 8"):
        watch(kv, oracle, [b])
