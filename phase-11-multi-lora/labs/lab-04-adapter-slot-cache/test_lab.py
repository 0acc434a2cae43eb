"""Lab 11-04: slots, the gate before them, and what fairness costs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
CAP = HERE.parent / "lab-02-serve-many-loras" / "captured" / "cpu-cap.json"


# ---- slots ---------------------------------------------------------------------------------------------------------


def test_fill_then_hit(impl):
    cache = impl.AdapterSlotCache(3)
    assert [cache.ensure(each) for each in (7, 5, 9, 5, 7)] == ["load", "load", "load", "hit", "hit"]
    assert cache.resident() == [9, 5, 7]
    assert (cache.stats.hits, cache.stats.misses, cache.stats.evictions) == (2, 3, 0)


def test_the_coldest_goes(impl):
    cache = impl.AdapterSlotCache(2)
    for each in (1, 2, 1):
        cache.ensure(each)
    assert cache.ensure(3) == "evict+load"
    assert cache.resident() == [1, 3], f"{cache.resident()}: 1 was used after 2. This looks like *First in, first out*"
    assert cache.ensure(2) == "evict+load" and cache.resident() == [3, 2]
    assert (cache.stats.hits, cache.stats.misses, cache.stats.evictions) == (1, 4, 2)


def test_pinned_ones_stay(impl):
    cache = impl.AdapterSlotCache(2)
    cache.ensure(1)
    cache.ensure(2)
    cache.pin(1)
    assert cache.resident() == [1, 2], "pinning is no use"
    assert cache.ensure(3) == "evict+load" and cache.resident() == [1, 3]
    assert cache.ensure(1) == "hit" and cache.resident() == [3, 1]
    cache.pin(3)
    before = cache.resident(), cache.stats.hits, cache.stats.misses, cache.stats.evictions
    with pytest.raises(RuntimeError, match=r"^no slot for adapter 5: all 2 are pinned$"):
        cache.ensure(5)
    assert (cache.resident(), cache.stats.hits, cache.stats.misses, cache.stats.evictions) == before
    assert cache.ensure(3) == "hit"
    with pytest.raises(ValueError, match=r"^adapter 5 has no slot$"):
        cache.pin(5)


def test_doors(impl):
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=rf"^max_loras must be at least 1, got {wrong}$"):
            impl.AdapterSlotCache(wrong)
    one = impl.AdapterSlotCache(1)
    assert one.ensure(4) == "load" and one.resident() == [4]


def hit_rate(impl, ids, slots):
    cache = impl.AdapterSlotCache(slots)
    for each in ids:
        cache.ensure(each)
    assert cache.stats.hits + cache.stats.misses == len(ids) and len(cache.resident()) <= slots
    return cache.stats.hits / len(ids)


def test_skewed_traffic_loves_lru(impl):
    """Two of sixteen adapters get four requests in five: .80 by LRU, .73 first in, first out."""
    chance = random.Random(0)
    ids = [chance.randint(1, 2) if chance.random() < 0.8 else chance.randint(3, 16) for _ in range(4000)]
    rate = hit_rate(impl, ids, 4)
    assert 0.77 < rate < 0.83, f"{rate:.2f} of the requests found their adapter; first in, first out gives .73"


def test_uniform_and_cyclic_traffic(impl):
    chance = random.Random(1)
    for tenants in (8, 16):
        rate = hit_rate(impl, [chance.randrange(tenants) for _ in range(4000)], 4)
        assert abs(rate - 4 / tenants) < 0.03, f"{tenants} tenants alike, 4 slots: {rate:.3f}"
    assert hit_rate(impl, [step % 5 for step in range(1000)], 4) == 0, "five in a circle over four slots: never there"


# ---- the gate of the pinned release --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "cap", "running", "deferred"),
    [
        ([1, 2, 1, 3, None, 2, 3], 2, [], [3, 6]),
        ([None, None, None, 1, 3, 2, 4, 5, 5, 5, 5, None, None, 1, 2, 3], 4, [], [7, 8, 9, 10]),
        ([1, 2, 3], 1, [3, 3, None], [0, 1]),
        ([1, 2, 3], 2, [2, None], [2]),
        ([None, None], 1, [1], []),
        ([], 2, [1], []),
        ([4, 4, 4], 1, [], []),
        ([2, 1], 1, [], [1]),
    ],
)
def test_who_is_admitted(impl, queue, cap, running, deferred):
    before = list(queue), list(running)
    admitted, found = impl.max_schedulable(queue, cap, running)
    assert list(found) == deferred and sorted([*admitted, *found]) == list(range(len(queue)))
    assert list(admitted) == [place for place in range(len(queue)) if place not in deferred]
    assert (queue, running) == before, "an argument was changed"


def test_deferral_is_no_barrier(impl):
    admitted, deferred = impl.max_schedulable([1, 2, 3, 1, None], 2)
    assert (list(admitted), list(deferred)) == ([0, 1, 3, 4], [2]), "this looks like *The first refusal ends the walk*"


def test_it_decides_as_the_real_scheduler(impl):
    """Each step of a run of real vLLM with two slots and three adapters, captured in lab 11-02."""
    found = json.loads(CAP.read_text(encoding="utf-8"))
    adapter = {row["request"]: row["adapter"] for row in found["answers"]}
    queue, running = list(adapter), []
    for number, step in enumerate(found["steps"]):
        now = [each.partition("-")[0] for each in step["running"]]
        running = [each for each in running if each in now]
        admitted, _ = impl.max_schedulable([adapter[each] for each in queue], 2, [adapter[each] for each in running])
        taken = [queue[place] for place in admitted]
        assert running + taken == now, f"step {number}: {running + taken}, and vLLM runs {now}"
        queue, running = [each for each in queue if each not in taken], now
    assert number == 18 and not queue


def test_gate_and_slots_agree(impl):
    """Coupled: whoever is admitted finds a slot, and nobody who runs loses his. With one slot less it thrashes."""
    for slots, expected in ((3, 0), (2, 1)):
        chance, cache, running, lost = random.Random(2), impl.AdapterSlotCache(slots), [], 0
        for _ in range(300):
            running = [each for each in running if chance.random() > 0.3]
            queue = [chance.choice([None, 1, 2, 3, 4, 5, 6]) for _ in range(4)]
            admitted, _ = impl.max_schedulable(queue, 3, running)
            running += [queue[place] for place in admitted]
            wanted = set(running) - {None}
            for each in sorted(wanted):
                cache.ensure(each)
            lost += not wanted <= set(cache.resident())
        assert bool(lost) == bool(expected), f"{slots} slots behind a gate of 3: {lost} of 300 steps lost an adapter"


# ---- fairness ------------------------------------------------------------------------------------------------------


def upstream(impl, slots):
    def gate(waiting, running, room):
        return list(impl.max_schedulable([each.adapter for each in waiting], slots, running)[0])[:room]

    return gate


def fair(impl, slots, patience=20):
    return impl.FairGate(slots, patience).admit


def run(gate, jobs, slots=2, seats=16, steps=400):
    found = given.simulate(gate, jobs, slots, seats, steps)
    assert not found.broken, found.broken
    return found


def test_the_pinned_gate_starves(impl):
    """Two busy adapters keep both slots, for ever: the one request for adapter 3 stands there at the end."""
    found = run(upstream(impl, 2), given.two_hot_one_cold())
    assert found.waits[3] == 390 and found.worst_step == 2 and found.waits[1] == found.waits[2] == 0


COLD = {
    "one": [(10, 3)],
    "one after the other": [(step, 3 + step // 60) for step in range(10, 340, 60)],
    "two at once": [(10, 3), (10, 4)],
    "two at once, again and again": [
        (step, 3 + step % 2) for start in range(10, 330, 100) for step in (start, start + 1)
    ],
}


@pytest.mark.parametrize("name", COLD)
def test_nobody_waits_for_ever(impl, name):
    found = run(fair(impl, 2), given.two_hot_one_cold(COLD[name]))
    late = {adapter: wait for adapter, wait in found.waits.items() if wait > 20 + 2 * 8}
    assert not late, f"longest waits by adapter: {found.waits}; allowed are 20 + 2 * 8"


@pytest.mark.parametrize("name", COLD)
def test_fairness_has_a_price(impl, name):
    before = run(upstream(impl, 2), given.two_hot_one_cold(COLD[name])).finished
    after = run(fair(impl, 2), given.two_hot_one_cold(COLD[name])).finished
    assert after >= 0.85 * before, f"{after} requests finish, {before} without fairness"


def test_who_is_patient_sees_no_difference(impl):
    """As long as nobody has waited longer than `patience`, the decisions are those of the pinned gate."""
    chance, gate = random.Random(3), fair(impl, 3, patience=9)
    for _ in range(300):
        running = [chance.choice([1, 2, None]) for _ in range(chance.randrange(4))]
        waits = sorted((chance.randint(0, 9) for _ in range(6)), reverse=True)
        queue = [given.Waiting(chance.choice([None, 1, 2, 3, 4, 5]), wait) for wait in waits]
        room = chance.randint(0, 6)
        wanted = upstream(impl, 3)(queue, running, room)
        assert list(gate(queue, running, room)) == wanted, f"{queue}, running {running}, room {room}"


def test_base_requests_are_never_held_back(impl):
    jobs = given.two_hot_one_cold(COLD["two at once, again and again"])
    jobs = sorted(jobs + [given.Job(step, None, 8) for step in range(1, 390, 3)], key=lambda job: job.arrives)
    assert run(fair(impl, 2), jobs).waits[None] == 0


def test_a_full_house(impl):
    """Six seats, so that requests wait for a seat too: the rules hold, and everybody who comes early is served."""
    found = run(fair(impl, 2), given.two_hot_one_cold(COLD["one"]), seats=6)
    assert found.waits[3] <= 20 + 2 * 8 + 8, f"waits {found.waits}"
    one = run(fair(impl, 1), given.two_hot_one_cold([], steps=100), slots=1, steps=100)
    assert one.worst_step == 1 and {1, 2} <= set(one.waits)
    assert max(one.waits.values()) <= 20 + 2 * 8 + 20, f"one slot, two busy adapters: waits {one.waits}"
