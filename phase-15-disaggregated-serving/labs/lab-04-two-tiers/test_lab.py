"""Lab 15-04: a store behind the pool: whose rows come back, what is lost first, and what it is worth."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close
from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
SHAPE = given.SHAPE


def admitted(tiers, keys):
    """What `admit` says of a prompt for which there is room."""
    found = tiers.admit(keys)
    assert found is not None, (
        f"a prompt of {len(keys)} blocks is refused, with {tiers.num_free} of {len(tiers.gpu)} blocks free; blocks "
        "that are shared need no room"
    )
    return found


def rows(*keys):
    return np.stack([given.content_of(key) for key in keys])


def keys_of(blocks, number=0):
    return given.conversation(number, blocks)


@pytest.fixture
def store(impl):
    """store(capacity, keys, …): one with these prompts in it, each stored in a call of its own."""

    def make(capacity, *prompts):
        made = impl.HostStore(capacity, SHAPE)
        for keys in prompts:
            made.store(keys, rows(*keys))
        return made

    return make


# ---- the store -----------------------------------------------------------------------------------------------------


def test_what_was_stored_comes_back(store):
    a, b, c = keys_of(3)
    made = store(4, [a, b, c])
    assert (len(made), made.writes, made.reads) == (3, 3, 0)
    close(made.load([c, a]), rows(c, a), "load", 0)
    assert made.reads == 2, f"two blocks were read: reads = {made.reads}"
    close(made.load([]), np.zeros((0, *SHAPE), np.float32), "load of nothing", 0)
    assert made.store([], np.zeros((0, *SHAPE))) == []


def test_lookup_stops_at_a_gap(store):
    a, b, c = keys_of(3)
    made = store(4, [a], [c])
    for keys, wanted in (([a, b, c], 1), ([b, c], 0), ([a, c], 2), ([], 0)):
        found = made.lookup(keys)
        assert found == wanted, f"a and c are stored: lookup({keys}) gave {found}, expected {wanted} leading blocks"


def test_a_prefix_loses_its_tail_first(store):
    a, b, c, d = keys_of(4)
    other = keys_of(1, number=1)
    made = store(4, [a, b, c, d], other)
    found = made.lookup([a, b, c, d])
    assert found == 3, (
        f"prefix a b c d, one eviction: {found} of 4 can be reached, expected 3. If the head left first, the other "
        "three are waste"
    )


@pytest.mark.parametrize("use", ("store", "load", "touch"))
def test_a_use_is_remembered(store, use):
    x, y, z = (keys_of(2, number) for number in range(3))
    made = store(4, x, y)
    getattr(made, use)(x, *([rows(*x)] if use == "store" else []))
    made.store(z, rows(*z))
    found = made.lookup(x), made.lookup(y), made.lookup(z)
    assert found == (2, 0, 2), (
        f"x, y stored, x used by {use}, then z takes the room of one: of x, y, z {found} are left, expected (2, 0, 2)"
    )


@pytest.mark.parametrize("use", ("load", "touch", "store"))
def test_of_those_used_together_the_tail_goes_first(store, use):
    a, b, c = keys_of(3)
    made = store(4, [c], [b], [a], keys_of(1, number=9))
    getattr(made, use)([a, b, c], *([rows(a, b, c)] if use == "store" else []))
    made.store(keys_of(2, number=1), rows(*keys_of(2, number=1)))
    found = made.lookup([a, b, c])
    assert found == 2, f"a b c used by {use}, two evictions: {found} of 3 can be reached, expected 2"


def test_a_question_is_no_use(store):
    x, y, z = (keys_of(1, number) for number in range(3))
    made = store(2, x, y)
    made.lookup(x)
    made.touch(keys_of(1, number=7))
    made.store(z, rows(*z))
    assert made.lookup(x) == 0 and made.lookup(y) == 1, "x was looked up, which is no use: it should go before y"


def test_a_load_that_failed_is_no_use(store):
    x, y, z = (keys_of(1, number) for number in range(3))
    made = store(2, x, y)
    with pytest.raises(KeyError, match="is not in the host store"):
        made.load([*x, *z])
    made.store(z, rows(*z))
    assert made.lookup(x) == 0 and made.lookup(y) == 1, "x was in a load that failed, which is no use: it goes before y"


def test_the_store_has_its_own_copy(store, impl):
    a, b = keys_of(2)
    made, source = impl.HostStore(2, SHAPE), rows(a, b)
    made.store([a, b], source)
    close(source, rows(a, b), "the caller's blocks after store", 0)
    source[:] = 0
    close(made.load([a, b]), rows(a, b), "the pool's block was written again (does the store keep a view?): load", 0)
    found = made.load([a])
    found[:] = 0
    close(made.load([a]), rows(a), "what load gave was written: load again", 0)


def test_nothing_is_written_twice(store):
    a, b, c = keys_of(3)
    made = store(4, [a, b])
    found = made.store([a, b, c], rows(c, c, c))
    assert found == [c] and made.writes == 3, f"a, b are there: wrote {found}, {made.writes} in all, expected [c] and 3"
    close(made.load([a, b]), rows(a, b), "a, b are as they were", 0)


def test_capacity_holds(store):
    made = store(3, *([key] for key in keys_of(9)))
    assert len(made) == 3, f"9 blocks stored in 3: {len(made)} are left, expected 3"
    made = store(3, keys_of(2, number=1))
    keys = keys_of(9)
    found = made.store(keys, rows(*keys))
    assert found == keys[:3] and len(made) == 3, f"a prompt of 9 in 3: wrote {found}, expected the first three"
    assert made.lookup(keys) == 3 and made.writes == 5
    assert store(0, keys_of(2)).lookup(keys_of(2)) == 0, "a store without room holds nothing"


def test_a_prompt_does_not_evict_itself(store):
    a, b, c = keys_of(3)
    made = store(3, [a, b], keys_of(1, number=1))
    found = made.store([a, b, c], rows(a, b, c))
    assert found == [c] and made.lookup([a, b, c]) == 3, f"wrote {found}; a, b, c should be there, and the other not"
    made = store(2, [a, b])
    assert made.store([a, b, c], rows(a, b, c)) == [], "c finds no room: a and b are of the same prompt"
    assert made.lookup([a, b]) == 2 and made.writes == 2


def test_pinned_blocks_stay(store):
    a, b, c = keys_of(3)
    x = keys_of(1, number=1)
    made = store(2, [a, b])
    made.pin([a, b])
    made.pin([a])
    assert made.store(x, rows(*x)) == [], "a, b are pinned in a store of two: there is no room for x"
    made.unpin([a, b])
    assert made.store(x, rows(*x)) == x, "b is not pinned any more"
    assert made.lookup([a]) == 1 and made.lookup(x) == 1, "a was pinned twice and unpinned once: it stays"
    made.unpin([a])
    made.store([c], rows(c))
    assert made.lookup([a]) == 0, "a was unpinned as often as it was pinned: now it may go"


def test_doors_of_the_store(store, impl):
    a, b, c = keys_of(3)
    made = store(2, [a])
    for call in (made.load, made.pin):
        with pytest.raises(KeyError, match=r"block \(0, 1\) is not in the host store"):
            call([a, b, c])
    assert made.reads == 0, "a load that failed has read nothing"
    with pytest.raises(ValueError, match=r"^block \(0, 0\) is not pinned$"):
        made.unpin([a])
    made.pin([a])
    made.store([b], rows(b))
    with pytest.raises(ValueError, match=r"^block \(0, 1\) is not pinned$"):
        made.unpin([a, b])
    assert made.store([c], rows(c)) == [c] and made.lookup([a]) == 1, "an unpin that failed has unpinned nothing"
    made = store(2, keys_of(2, number=1))
    with pytest.raises(ValueError, match=r"^store: blocks of shape \(2, 16, 2\) for 3 keys, expected \(3, 16, 2\)$"):
        made.store([a, b, c], rows(a, b))
    assert made.lookup(keys_of(2, number=1)) == 2, "a store that was refused has evicted something"
    with pytest.raises(ValueError, match=r"^capacity must be at least 0, got -1$"):
        impl.HostStore(-1, SHAPE)


def test_it_keeps_what_the_engine_keeps(impl):
    """300 stores, loads, pins and questions, beside the engine's manager, which decides as the pinned release's."""
    from mini_vllm.kv_offload.base import ReqContext
    from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager

    chance, made, manager, context = (
        random.Random(2),
        impl.HostStore(12, SHAPE),
        CPUOffloadingManager(12),
        ReqContext("lab"),
    )
    prompts, pinned = [keys_of(5, number) for number in range(6)], []
    for step in range(300):
        keys = chance.choice(prompts)[: chance.randint(1, 5)]
        there = keys[: made.lookup(keys)]
        act = chance.choice(("store", "store", "load", "pin", "unpin"))
        if act == "store" and (output := manager.prepare_store(keys, context)) is not None:
            manager.complete_store(output.keys_to_store, context)
            manager.touch(keys, context)
            found = made.store(keys, rows(*keys))
            assert found == output.keys_to_store, f"step {step}: wrote {found}, the engine {output.keys_to_store}"
        elif act == "load":
            made.load(there)
            manager.touch(there, context)
        elif act == "pin" and len(pinned) < 3:
            pinned.append(there)
            made.pin(there)
            manager.prepare_load(there, context)
        elif act == "unpin" and pinned:
            made.unpin(pinned[0])
            manager.complete_load(pinned.pop(0), context)
        mine = [key for keys in prompts for key in keys if made.lookup([key])]
        its = [key for keys in prompts for key in keys if manager.lookup(key, context)]
        assert mine == its, f"step {step}, {act} {keys}: your store has {mine}, the engine's {its}"


# ---- two tiers -----------------------------------------------------------------------------------------------------


def compute(tiers, keys):
    """A request that is admitted and computed; its blocks."""
    ids, pool, host = admitted(tiers, keys)
    for block_id, key in list(zip(ids, keys, strict=True))[pool + host :]:
        tiers.write(block_id, given.content_of(key))
    return ids


def test_a_prompt_gets_blocks_of_its_own(impl):
    tiers = impl.TwoTiers(4, 4, SHAPE)
    assert tiers.gpu.shape == (4, *SHAPE) and tiers.gpu.dtype == np.float32 and tiers.num_free == 4
    ids, pool, host = admitted(tiers, keys_of(3))
    assert (len(set(ids)), pool, host, tiers.num_free) == (3, 0, 0, 1), f"got {ids}, {pool}, {host}, {tiers.num_free}"
    assert tiers.admit([]) == ([], 0, 0)


def test_two_share_a_block(impl):
    tiers = impl.TwoTiers(4, 4, SHAPE)
    first = compute(tiers, keys_of(3))
    again, pool, host = admitted(tiers, keys_of(3))
    assert (again, pool, host, tiers.num_free) == (first, 3, 0, 1), f"the same prompt, while it runs: got {again}"
    tiers.finish(first)
    assert tiers.num_free == 1, f"the other still holds three of four blocks, and {tiers.num_free} are free, expected 1"
    close(tiers.gpu[again], rows(*keys_of(3)), "the blocks of the one that goes on", 0)
    tiers.finish(again)
    assert tiers.num_free == 4


def test_the_pool_loses_the_tail_first(impl):
    tiers = impl.TwoTiers(4, 0, SHAPE)
    tiers.finish(compute(tiers, keys_of(4)))
    tiers.finish(compute(tiers, keys_of(1, number=1)))
    _, found, _ = admitted(tiers, keys_of(4))
    assert found == 3, f"a b c d in a pool of four, one block is taken: {found} of 4 can be reached, expected 3"


def test_the_host_loses_the_tail_first(impl):
    """A pool of 4, a host of 6: prompts of 4, 4 and 3. Each policy leaves at least two blocks of the first."""
    tiers = impl.TwoTiers(4, 6, SHAPE)
    for number in (0, 1):
        tiers.finish(compute(tiers, keys_of(4, number)))
    tiers.admit(keys_of(3, number=2))
    found = tiers.host.lookup(keys_of(4))
    assert found >= 2, (
        f"a b c d went to the host, and its room ran out: {found} of 4 can be reached, expected 2 or more. In which "
        "order were they stored?"
    )


def test_nothing_is_known_before_it_is_written(impl):
    tiers, keys = impl.TwoTiers(8, 8, SHAPE), keys_of(2)
    first, _, _ = admitted(tiers, keys)
    tiers.write(first[0], given.content_of(keys[0]))
    second, pool, host = admitted(tiers, keys)
    assert (second[0], pool, host) == (first[0], 1, 0), "one of two blocks is written: one hit"
    assert second[1] != first[1], "a block that another request computes is not this one's"
    for ids in (first, second):
        tiers.write(ids[1], given.content_of(keys[1]))
        tiers.finish(ids)
    assert tiers.num_free == 8
    ids, _, _ = admitted(tiers, keys_of(3, number=1))
    tiers.finish(ids)  # aborted: nothing of it was written
    with pytest.raises(ValueError, match=rf"^block {ids[0]} is not to be computed$"):
        tiers.write(ids[0], np.zeros(SHAPE))
    assert tiers.admit(keys_of(3, number=1))[1:] == (0, 0), "an aborted prompt left blocks that nobody wrote"
    for number in (2, 3):
        tiers.finish(compute(tiers, keys_of(4, number=number)))
    assert tiers.host.lookup(keys_of(3, number=1)) == 0, "the host has blocks that nobody wrote"


def test_a_refusal_changes_nothing(impl):
    tiers, x, y = impl.TwoTiers(6, 8, SHAPE), keys_of(3), keys_of(3, number=1)
    tiers.finish(compute(tiers, x))
    tiers.finish(compute(tiers, y))
    held = compute(tiers, keys_of(3, number=2))
    before = len(tiers.host), tiers.host.writes, tiers.host.reads
    for keys in (keys_of(4, number=1), keys_of(7, number=3)):
        found = tiers.admit(keys)
        assert found is None, f"{len(keys)} blocks, three of six are held: got {found}, expected None"
    after = len(tiers.host), tiers.host.writes, tiers.host.reads
    assert (tiers.num_free, *after) == (3, *before), f"refused, and free blocks are {tiers.num_free}, host {after}"
    again, pool, _ = admitted(tiers, y)
    assert pool == 3, "the blocks that the refused prompt would have shared are still hits"
    tiers.finish(again)
    tiers.finish(held)
    assert tiers.num_free == 6, f"{tiers.num_free} of 6 blocks are free in the end"


def test_a_refusal_is_no_use(impl):
    """What a refused prompt asked for is as old as before: x is older than y, in the pool and in the host."""
    x, y, w = keys_of(2), keys_of(2, number=1), keys_of(2, number=3)
    tiers = impl.TwoTiers(6, 0, SHAPE)
    for keys in (x, y):
        tiers.finish(compute(tiers, keys))
    tiers.admit(keys_of(2, number=2))
    assert tiers.admit(keys_of(5)) is None, "three blocks beside x, and y has the only two that are left"
    tiers.admit(w)
    assert tiers.admit(y)[1] == 2, "the pool gave up y: x was asked for by a prompt that was refused, which is no use"
    tiers = impl.TwoTiers(2, 4, SHAPE)
    for keys in (x, y):
        tiers.host.store(keys, rows(*keys))
    tiers.admit(keys_of(2, number=2))
    assert tiers.admit(x) is None, "the pool is held"
    tiers.host.store(w, rows(*w))
    found = tiers.host.lookup(x), tiers.host.lookup(y)
    assert found == (0, 2), f"of x and y {found} are left in the host, expected (0, 2): a refused prompt is no use of x"


def test_a_refusal_pins_nothing(impl):
    """A prompt of three that the host has; two blocks of the pool are free."""
    tiers, x = impl.TwoTiers(4, 16, SHAPE), keys_of(3)
    tiers.finish(compute(tiers, x))
    tiers.finish(compute(tiers, keys_of(4, number=1)))
    compute(tiers, keys_of(2, number=2))
    assert tiers.host.lookup(x) == 3, f"pushed out of the pool: the host has {tiers.host.lookup(x)} of 3 blocks"
    assert tiers.admit(x) is None, "two blocks are free, three are asked for"
    keys = keys_of(16, number=3)
    found = tiers.host.store(keys, rows(*keys))
    assert found == keys, (
        f"a prompt was refused, and the host takes {len(found)} of 16 new blocks: is one still pinned?"
    )


def test_contents_survive_any_order(impl):
    """600 steps of six prompts: begin, compute a block, end; pool of 12, host of 20."""
    chance, tiers, running = random.Random(1), impl.TwoTiers(12, 20, SHAPE), []
    for step in range(600):
        act = chance.random()
        if act < 0.45:
            keys = keys_of(chance.randint(1, 5), chance.randrange(6))
            answer = tiers.admit(keys)
            if answer is not None:
                ids, pool, host = answer
                running.append((ids, keys, [*range(pool + host, len(keys))]))
                for at in range(pool + host):
                    same = np.array_equal(tiers.gpu[ids[at]], given.content_of(keys[at]))
                    whose = f"block {keys[at][1]} of conversation {keys[at][0]} {given.where(at, pool)}"
                    assert same, f"step {step}: {whose} with another's rows"
        elif act < 0.8 and any(missing for _, _, missing in running):
            ids, keys, missing = chance.choice([each for each in running if each[2]])
            at = missing.pop(0)
            tiers.write(ids[at], given.content_of(keys[at]))
        elif running:
            tiers.finish(running.pop(chance.randrange(len(running)))[0])
        held = {block_id for ids, _, _ in running for block_id in ids}
        assert tiers.num_free == 12 - len(held), f"step {step}: {tiers.num_free} free, expected {12 - len(held)}"
        for ids, keys, missing in running:
            for at, (block_id, key) in enumerate(zip(ids, keys, strict=True)):
                same = at in missing or np.array_equal(tiers.gpu[block_id], given.content_of(key))
                assert same, f"step {step}: a running request's block {key} was overwritten"
    for ids, _, _ in running:
        tiers.finish(ids)
    assert tiers.num_free == 12, f"{tiers.num_free} of 12 blocks are free in the end"
    assert tiers.host.reads > 0, "600 steps, and nothing ever came back from the host"


def test_a_load_survives_its_own_evictions(impl):
    """Room in the pool is made by pushing blocks into the host, where those that are to be loaded lie."""
    tiers = impl.TwoTiers(8, 4, SHAPE)
    for turn in range(6):
        for number in range(3):
            keys = keys_of(4, number)
            lost = ""
            try:
                ids = compute(tiers, keys)
            except KeyError as error:
                lost = f"{error}: it was to be loaded, and went while room was made for it"
            assert lost == "", f"round {turn}, conversation {number}: {lost}"
            for block_id, key in zip(ids, keys, strict=True):
                same = np.array_equal(tiers.gpu[block_id], given.content_of(key))
                assert same, f"round {turn}, conversation {number}: block {key[1]} has another's rows"
            tiers.finish(ids)
    keys = keys_of(4, number=9)
    found = tiers.host.store(keys, rows(*keys))
    assert found == keys, (
        f"nobody loads any more, and the host takes {len(found)} of 4 new blocks: is one still pinned?"
    )


def test_what_came_back_is_in_the_pool(impl):
    """Prompt 0 is pushed out by two others, and loaded: from then on others share it, and nobody computes it."""
    tiers, keys = impl.TwoTiers(6, 12, SHAPE), keys_of(3)
    for number in range(3):
        tiers.finish(compute(tiers, keys_of(3, number)))
    ids, pool, host = admitted(tiers, keys)
    assert (pool, host) == (0, 3), f"pushed out of the pool: got {pool} hits there, {host} in the host, expected 0, 3"
    assert tiers.host.reads == 3, f"three blocks were loaded, once: reads = {tiers.host.reads}"
    again, pool, host = admitted(tiers, keys)
    assert (again, pool, host) == (ids, 3, 0), f"loaded a moment ago: got {pool} hits in the pool, {host} in the host"
    with pytest.raises(ValueError, match=rf"^block {ids[0]} is not to be computed$"):
        tiers.write(ids[0], np.zeros(SHAPE))
    close(tiers.gpu[ids], rows(*keys), "what was loaded", 0)


def test_each_block_is_written_once(impl):
    tiers = impl.TwoTiers(3, 6, SHAPE)
    found = given.serve(tiers, given.in_turn(2, 5), blocks=3)
    assert tiers.host.writes <= 6, (
        f"6 blocks, 5 rounds, a host with room for all: {tiers.host.writes} writes, expected 6 at most"
    )
    assert found["wrong"] == "", found["wrong"]


def test_enough_room_means_all_hits(impl):
    found = given.serve(impl.TwoTiers(32, 96, SHAPE), given.in_turn(12, 4))
    assert found["hit_rate"] == 0.75, (
        f"96 blocks, a host for 96, four rounds: hit rate {found['hit_rate']:.3f}, expected .75, all but the first"
    )
    assert found["wrong"] == "", found["wrong"]


def test_the_pool_alone(impl):
    order = given.at_random()
    wanted = given.hit_rate("end", 0, order)
    found = given.serve(impl.TwoTiers(32, 0, SHAPE), order)
    assert found["hit_rate"] == wanted, (
        f"random order, no host: hit rate {found['hit_rate']:.3f}, expected {wanted:.3f}: the longest unused goes first"
    )


def test_the_host_adds_to_it(impl):
    order = given.at_random()
    found = given.serve(impl.TwoTiers(32, 64, SHAPE), order)
    assert found["hit_rate"] > 0.6, f"random order, host of 64: hit rate {found['hit_rate']:.3f}, expected above .6"
    assert found["wrong"] == "", found["wrong"]


def test_the_lists_are_the_callers(impl):
    tiers, keys = impl.TwoTiers(4, 4, SHAPE), keys_of(3)
    ids = compute(tiers, keys)
    held = list(ids)
    tiers.finish(ids)
    assert ids == held and keys == keys_of(3), f"the caller's lists became {ids} and {keys}"


def test_doors_of_the_tiers(impl):
    tiers = impl.TwoTiers(4, 4, SHAPE)
    ids = compute(tiers, keys_of(2))
    other = next(block_id for block_id in range(4) if block_id not in ids)
    for block_id in (ids[0], other):
        with pytest.raises(ValueError, match=rf"^block {block_id} is not to be computed$"):
            tiers.write(block_id, np.zeros(SHAPE))
    close(tiers.gpu[ids], rows(*keys_of(2)), "after a write that was refused", 0)
    with pytest.raises(ValueError, match=rf"^block {other} is held by no request$"):
        tiers.finish([*ids, other])
    assert tiers.num_free == 2, "a finish that failed has freed nothing"
    tiers.finish(ids)
    with pytest.raises(ValueError, match=rf"^block {ids[0]} is held by no request$"):
        tiers.finish(ids)


# ---- what it is worth ----------------------------------------------------------------------------------------------


def test_break_even(impl):
    for args, wanted in (
        ((0.010, 8192, 100e6, 200e-6), 84.6883468835),
        ((0.010, 8192, 1e6, 200e-6), math.inf),
        ((0.0, 8192, 100e6, 200e-6), 0.0),
        ((0.010, 8192, 8192 * 4096, 1 / 4096), math.inf),
        ((0.0, 8192, 1e6, 200e-6), math.inf),
        ((0.002, 131072, 25e9 / 8, 1e-4), 34.4489273982),
        ((1.0, 1, 1, 2.0), 1.0),
        ((1.0, 1, 0.5, 4.0), 0.5),
    ):
        found = impl.break_even_tokens(*args)
        assert found == pytest.approx(wanted, abs=1e-9), f"break_even_tokens{args}: got {found}, expected {wanted}"
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=rf"^load_bytes_per_s must be above 0, got {wrong}$"):
            impl.break_even_tokens(0.01, 8192, wrong, 2e-4)


def test_your_prediction(impl):
    wanted, mine = given.hit_rate("end", 88, given.in_turn()), impl.predicted_hits()
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number from 0 to 1"
    assert mine == pytest.approx(wanted, abs=0.02), (
        f"you said {mine}, it is {wanted:.3f}. Which blocks does the host give up for the conversation that is served, "
        "and who is served next?"
    )
