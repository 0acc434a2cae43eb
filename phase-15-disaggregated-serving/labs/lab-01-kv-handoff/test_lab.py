"""Lab 15-01: requests that move, on engines that notice wrong keys and values."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from course.labs import load
from mini_vllm import KVMismatchError, RequestStatus, SamplingParams

given = load(Path(__file__).resolve().parent / "given.py")
Host, start = given.Host, given.start
POCKET_PROMPT = tuple(range(40, 79))
STAYED = given.unmoved(None, given.PROMPT, 0.0, None, 12)


def trouble(engine):
    """A step; what went wrong with it, in words, or nothing."""
    try:
        engine.step()
    except KVMismatchError as error:
        return str(error)
    except KeyError as error:
        return f"the plan names request {error}, of which the model runner here has never heard"
    return ""


def finish(impl, engine, request):
    """Its tokens."""
    steps = 0
    while not request.is_finished() and steps < 400:
        found, steps = trouble(engine), steps + 1
        assert found == "", "a step at D reads what P had, in the order of the tokens, for a request that D knows"
    assert request.is_finished(), "400 steps, and the request has not ended"
    return impl.run_to_completion(engine, request)


def move(impl, source, target, request_id="r"):
    return impl.import_request(target, pickle.loads(pickle.dumps(impl.export_request(source, request_id))))


def rows_of(engine, request_id):
    """What an engine holds for a request's computed tokens."""
    computed = engine.scheduler.requests[request_id].num_computed_tokens
    (table,), size = engine.scheduler.kv_cache_manager.get_block_ids(request_id), engine.block_size
    return engine.read_kv([table[at // size] * size + at % size for at in range(computed)])


def facts(engine):
    """All that an import that was refused must leave alone."""
    scheduler, pool = engine.scheduler, engine.scheduler.kv_cache_manager.block_pool
    return {
        "usage": pool.get_usage(),
        "requests": sorted(scheduler.requests),
        "running": [request.request_id for request in scheduler.running],
        "waiting": len(scheduler.waiting) + len(scheduler.skipped_waiting),
        "tables": sorted(name for name, blocks in scheduler.kv_cache_manager.req_to_blocks.items() if blocks),
    }


# ---- the same tokens, wherever it runs -----------------------------------------------------------------------------


def test_handoff_after_prefill(impl):
    source, target = Host(), Host(num_blocks=33)
    request = start(source, "r")
    assert (request.num_computed_tokens, request.num_output_tokens) == (25, 1)
    moved = move(impl, source, target)
    assert moved.status == RequestStatus.RUNNING and moved.num_computed_tokens == 25, (
        f"{moved}: at D it runs, and its 25 tokens are computed: a counter of 0 would be a preemption"
    )
    assert tuple(finish(impl, target, moved)) == STAYED


@pytest.mark.parametrize(("steps", "computed"), [(2, 26), (5, 29), (11, 35)])
def test_handoff_mid_decode(impl, steps, computed):
    source, target = Host(), Host()
    request = start(source, "r", steps=steps)
    assert request.num_computed_tokens == computed
    assert tuple(finish(impl, target, move(impl, source, target))) == STAYED


def test_handoff_mid_prefill(impl):
    for steps in (1, 2, 3):
        source, target = Host(max_num_batched_tokens=8), Host(max_num_batched_tokens=16)
        assert start(source, "r", steps=steps).num_computed_tokens == 8 * steps
        assert tuple(finish(impl, target, move(impl, source, target))) == STAYED, f"after {steps} chunks of 8"


@pytest.mark.parametrize(("at_p", "at_d"), [(2, 8), (8, 2), (4, 8), (8, 4)])
def test_other_blocks(impl, at_p, at_d):
    source, target = Host(block_size=at_p), Host(block_size=at_d)
    start(source, "r", steps=4)
    assert tuple(finish(impl, target, move(impl, source, target))) == STAYED


def test_other_places(impl):
    source, target = Host(), Host()
    start(source, "first", "somebody who came before")
    start(target, "other", "and here", steps=3)
    start(source, "r", steps=2)
    at_p = source.scheduler.kv_cache_manager.get_block_ids("r")
    moved = move(impl, source, target)
    assert target.scheduler.kv_cache_manager.get_block_ids("r") != at_p
    assert tuple(finish(impl, target, moved)) == STAYED


def test_two_move(impl):
    source, target = Host(), Host(block_size=8)
    for name, prompt in (("a", given.PROMPT), ("b", "somebody else")):
        start(source, name, prompt, steps=2)
    moved = [move(impl, source, target, name) for name in ("b", "a")]
    wanted = given.unmoved(None, "somebody else", 0.0, None, 12), STAYED
    for request, tokens in zip(moved, wanted, strict=True):
        assert tuple(finish(impl, target, request)) == tokens, f"request {request.request_id}"


def test_a_real_model(impl):
    source, target = Host("pocket", block_size=16), Host("pocket", block_size=8)
    start(source, "r", list(POCKET_PROMPT), steps=3)
    sent = rows_of(source, "r")
    moved = move(impl, source, target)
    assert np.array_equal(rows_of(target, "r"), sent), (
        "each row at D is P's to the last bit, in the order of the tokens"
    )
    found = tuple(impl.run_to_completion(target, moved))
    wanted = given.unmoved("pocket", POCKET_PROMPT, 0.0, None, 12)
    assert found == wanted, f"the keys and values at D are not those of P: {found} for {wanted}"


def test_drawn_tokens_go_on(impl):
    source, target = Host(), Host()
    start(target, "other", "one", given.drawn(3))
    start(source, "r", params=given.drawn(7), steps=5)
    wanted = given.unmoved(None, given.PROMPT, 1.0, 7, 12)
    assert tuple(finish(impl, target, move(impl, source, target))) == wanted


def test_all_settings_go_along(impl):
    source, target = Host(), Host()
    params = SamplingParams(
        temperature=0.7, top_p=0.9, top_k=40, seed=3, max_tokens=12, stop_token_ids=[999], min_tokens=2
    )
    request = start(source, "r", params=params)
    assert move(impl, source, target).sampling_params == request.sampling_params


def test_to_the_end(impl):
    """60 tokens of a request that was never moved, by your `run_to_completion` alone."""
    source = Host()
    found = tuple(impl.run_to_completion(source, start(source, "r", params=given.greedy(60))))
    assert found == given.unmoved(None, given.PROMPT, 0.0, None, 60), f"{len(found)} tokens, 60 were asked for"


def test_any_route(impl):
    rng = random.Random(0)
    for case in range(20):
        hosts = [Host(block_size=size, max_num_batched_tokens=rng.choice((8, 32))) for size in (2, 4, 8)]
        seed = None if rng.random() < 0.5 else rng.randrange(3)
        params = given.greedy() if seed is None else given.drawn(seed)
        at = rng.randrange(3)
        request, route = start(hosts[at], "r", params=params, steps=rng.randint(1, 4)), [at]
        for _ in range(rng.randint(1, 4)):
            if request.is_finished():
                break
            there = rng.choice((0, 1, 2))  # the same engine again, now and then
            request, at = move(impl, hosts[at], hosts[there]), there
            route.append(at)
            for _ in range(rng.randrange(4)):
                hosts[at].step()
        wanted = given.unmoved(None, given.PROMPT, params.temperature, params.seed, 12)
        assert tuple(finish(impl, hosts[at], request)) == wanted, f"case {case}: route {route}"
        for host in hosts:
            host.step()
            assert not host.runner.requests, f"case {case}: route {route}: a model runner still has {host.runner}"


# ---- P, afterwards -------------------------------------------------------------------------------------------------


def test_source_is_clean(impl):
    source = Host()
    start(source, "r", steps=3)
    impl.export_request(source, "r")
    found = facts(source)
    assert found["usage"] == 0.0, f"P still holds {found['tables']}: {found['usage']:.3f} of its pool is in use"
    assert (found["requests"], found["running"], found["waiting"]) == ([], [], 0)
    assert not source.has_unfinished_requests() and not source.scheduler.has_unfinished_requests()
    source.step()
    assert "r" not in source.runner.requests, "P's model runner was not told, and keeps the request for ever"


def test_the_others_at_p(impl):
    source = Host()
    other = start(source, "other", "somebody else", steps=2)
    start(source, "r", steps=2)
    impl.export_request(source, "r")
    assert source.scheduler.running == [other]
    wanted = given.unmoved(None, "somebody else", 0.0, None, 12)
    assert tuple(finish(impl, source, other)) == wanted


def test_payload_is_a_snapshot(impl):
    source, first, second = Host(), Host(), Host(block_size=8)
    request = start(source, "r", steps=2)
    payload = impl.export_request(source, "r")
    assert payload["sampling_params"] is not request.sampling_params, "P's settings are P's own"
    for number in range(4):  # P's blocks get other owners
        start(source, f"{number}", f"{number}" * 30)
    kept = {**payload}
    moved = impl.import_request(first, payload)
    assert payload.keys() == kept.keys() and all(payload[name] is kept[name] for name in kept), (
        "the payload was changed"
    )
    assert moved.sampling_params is not payload["sampling_params"], "the payload's settings are the caller's"
    assert tuple(finish(impl, first, moved)) == STAYED
    counts = len(payload["prompt_token_ids"]), len(payload["output_token_ids"]), payload["num_computed_tokens"]
    assert counts == (25, 2, 26), f"{counts}: the payload grew with the request at D: a list is shared"
    payload["output_token_ids"].append(0)
    payload["prompt_token_ids"].append(0)
    assert (moved.num_output_tokens, len(moved.prompt_token_ids)) == (12, 25)
    payload["output_token_ids"].pop()
    payload["prompt_token_ids"].pop()
    assert tuple(finish(impl, second, impl.import_request(second, payload))) == STAYED, "imported twice"


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_what_crosses(impl, steps):
    source = Host("pocket", block_size=8)
    request = start(source, "r", list(POCKET_PROMPT), steps=steps)
    held = len(source.scheduler.kv_cache_manager.get_block_ids("r")[0]) * 8
    payload = impl.export_request(source, "r")
    least, most = (tokens * source.bytes_per_token for tokens in (request.num_computed_tokens, held))
    size = len(pickle.dumps(payload["kv"]))
    assert least <= size <= most + 2000, f"kv has {size} bytes, the {request.num_computed_tokens} tokens have {least}"
    names = {"request_id", "prompt_token_ids", "output_token_ids", "num_computed_tokens", "sampling_params", "kv"}
    assert set(payload) == names
    assert len(pickle.dumps({**payload, "kv": None})) < 4000, "beside kv a request is a few hundred numbers"


def test_who_cannot_go(impl):
    source = Host(max_num_seqs=1)
    start(source, "runs")
    source.add_request("waits", "a second one", given.greedy())
    before = facts(source)
    with pytest.raises(KeyError, match="request 'nobody' is not on this engine"):
        impl.export_request(source, "nobody")
    with pytest.raises(ValueError, match="request 'waits' is WAITING: only a running request can be exported"):
        impl.export_request(source, "waits")
    assert facts(source) == before
    source.scheduler.table.preempt_request(source.scheduler.running.pop())
    with pytest.raises(ValueError, match="request 'runs' is PREEMPTED: only a running request can be exported"):
        impl.export_request(source, "runs")


# ---- D, at the door and afterwards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "blocks"), [(1, 7), (2, 7), (4, 7), (5, 8), (11, 9)])
def test_destination_pays(impl, steps, blocks):
    source, target = Host(block_size=8), Host(block_size=4)
    start(source, "r", steps=steps)
    pool = target.scheduler.kv_cache_manager.block_pool
    before = pool.get_num_free_blocks()
    moved = move(impl, source, target)
    paid = before - pool.get_num_free_blocks()
    assert paid == blocks, f"D paid {paid} blocks of 4 for {moved.num_computed_tokens} tokens; it has to be {blocks}"


def refused(impl, target, payload, error, match):
    before = facts(target)
    try:
        impl.import_request(target, payload)
        said = "nothing"
    except (ValueError, RuntimeError, LookupError, AttributeError) as found:
        if isinstance(found, NotImplementedError):
            raise
        said = f"{type(found).__name__}: {found}"
    assert said.startswith(f"{error.__name__}: ") and match in said, f"the refusal: got {said}"
    assert facts(target) == before, "a refusal leaves the engine as it was"


def payload_of(impl, prompt=given.PROMPT, model=None, **params):
    source = Host(model)
    start(source, "r", prompt, given.greedy(**params))
    return impl.export_request(source, "r")


def test_no_room(impl):
    payload = payload_of(impl)
    target = Host(num_blocks=11)
    start(target, "other", "x" * 17)
    refused(impl, target, payload, RuntimeError, "no room for request 'r': its 25 computed tokens need more")


def test_no_seat(impl):
    target = Host(max_num_seqs=2)
    for name in ("a", "b"):
        start(target, name, name)
    refused(impl, target, payload_of(impl), RuntimeError, "no seat for request 'r': 2 of 2 run")


def test_it_could_never_end_here(impl):
    refused(impl, Host(num_blocks=8), payload_of(impl), ValueError, "max_tokens=12 needs room for 36")


def test_it_just_fits(impl):
    """36 of its 37 tokens get keys and values: nine blocks of 4, and there are nine."""
    source, target = Host(), Host(num_blocks=10)
    start(source, "r", steps=5)
    assert tuple(finish(impl, target, move(impl, source, target))) == STAYED


@pytest.mark.parametrize("steps", [0, 1])
def test_a_name_is_taken(impl, steps):
    target = Host()
    start(target, "r", "another one of this name", steps=steps)
    refused(impl, target, payload_of(impl), ValueError, "request_id 'r' belongs to an unfinished request")


def test_who_waits_has_no_seat(impl):
    source, target = Host(), Host(max_num_seqs=1)
    waits = start(target, "waits", "somebody else", steps=0)
    start(source, "r")
    assert tuple(finish(impl, target, move(impl, source, target))) == STAYED
    assert tuple(finish(impl, target, waits)) == given.unmoved(None, "somebody else", 0.0, None, 12)


def test_what_arrives_is_not_what_was_sent(impl):
    short = payload_of(impl, "nine byte")
    target = Host()
    broken = {**payload_of(impl), "kv": short["kv"]}
    refused(impl, target, broken, ValueError, "kv does not hold the 25 tokens that num_computed_tokens claims")
    broken = {**payload_of(impl), "num_computed_tokens": 9}
    refused(impl, target, broken, ValueError, "kv does not hold the 9 tokens that num_computed_tokens claims")
    asks = start(target, "asks", given.PROMPT, steps=1)
    assert tuple(finish(impl, target, asks)) == STAYED, "nobody may find what never arrived"


def test_of_another_model(impl):
    target = Host("pocket", num_blocks=12)
    before = facts(target)
    payload = payload_of(impl)
    with pytest.raises(ValueError, match="rows must be"):
        impl.import_request(target, payload)
    assert facts(target) == before, "write_kv refused, and the blocks went back"
    asks = start(target, "asks", list(payload["prompt_token_ids"]))
    assert asks.num_cached_tokens == 0, "blocks that were never filled can be found in D's prefix cache"


def test_the_others_at_d(impl):
    source, target = Host(), Host()
    other = start(target, "other", "somebody else", steps=2)
    start(source, "r", steps=2)
    moved = move(impl, source, target)
    wanted = given.unmoved(None, "somebody else", 0.0, None, 12)
    assert tuple(finish(impl, target, moved)) == STAYED and tuple(finish(impl, target, other)) == wanted
    assert facts(target)["usage"] == 0.0


def test_once_a_step(impl):
    source, target = Host(), Host()
    start(source, "r", steps=2)
    moved = move(impl, source, target)
    assert facts(target)["waiting"] == 0 and target.scheduler.running == [moved]
    assert target.scheduler.requests == {"r": moved}
    target.step()
    assert (moved.num_computed_tokens, moved.num_output_tokens) == (27, 3)


def test_d_may_preempt_it(impl):
    source, target = Host(), Host(num_blocks=15)
    other = start(target, "other", "abcdefghijkl", given.greedy(30), steps=2)
    start(source, "r", steps=2)
    moved = move(impl, source, target)
    assert tuple(finish(impl, target, moved)) == STAYED
    assert moved.num_preemptions > 0, "this pool is too small for both"
    assert tuple(finish(impl, target, other)) == given.unmoved(None, "abcdefghijkl", 0.0, None, 30)


def test_others_find_its_blocks(impl):
    source, target = Host(block_size=8), Host()
    start(source, "r")
    moved = move(impl, source, target)
    asks = start(target, "asks", given.PROMPT)
    assert asks.num_cached_tokens == 24, "a second request with this prompt finds its six full blocks"
    assert tuple(finish(impl, target, asks)) == tuple(finish(impl, target, moved)) == STAYED


def test_nobody_finds_the_newest_token(impl):
    """28 tokens would fill seven blocks, and 27 are computed. It leaves again before the last one is."""
    source, target = Host(), Host()
    start(source, "r", steps=3)
    moved = move(impl, source, target)
    assert (moved.num_computed_tokens, moved.num_tokens) == (27, 28)
    impl.export_request(target, "r")
    asks = start(target, "asks", [*given.PROMPT.encode(), *STAYED[:3], 7], steps=0)
    assert trouble(target) == "", "D's prefix cache has a block whose last token nobody has computed"
    assert asks.num_cached_tokens == 24, f"{asks.num_cached_tokens} tokens were found, and six blocks were full"


# ---- what you thought ----------------------------------------------------------------------------------------------


def test_your_prediction(impl):
    predicted = impl.predicted_tokens_at_d()
    source, target = Host(), Host()
    start(source, "r")
    finish(impl, target, move(impl, source, target))
    moved, again = target.engine_core.num_scheduled_tokens, Host()
    tokens = [*given.PROMPT.encode(), STAYED[0]]
    finish(impl, again, start(again, "again", tokens, given.greedy(11), steps=0))
    found = moved, again.engine_core.num_scheduled_tokens
    assert tuple(predicted) == found, f"got {predicted} from you, expected {found}: what D computed"
