"""Lab 10-05: routers on worked counts, beside the real one, and on simulated traffic."""

from __future__ import annotations

import json
import lzma
import random
from functools import cache
from pathlib import Path

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
sim = load(HERE / "sim.py")
EPISODES = json.loads(lzma.decompress((HERE / "captured" / "routes.json.xz").read_bytes()))["episodes"]
PROMPT = list(range(40))


def routes(router, number, prompt=PROMPT):
    return [router.route(prompt) for _ in range(number)]


# ---- turns and loads -----------------------------------------------------------------------------------------------


def test_round_robin_takes_turns(impl):
    for replicas, wanted in ((4, [0, 1, 2, 3, 0]), (1, [0] * 5), (3, [0, 1, 2, 0, 1])):
        router = impl.RoundRobin(replicas)
        router.update([(9, 9)] * replicas)
        assert routes(router, 5) == wanted


def test_a_report_is_no_turn(impl):
    router, found = impl.RoundRobin(3), []
    for counts in ([(0, 0), (9, 9), (0, 0)], [(9, 9), (0, 0), (0, 0)], [(5, 0), (5, 0), (0, 0)]):
        router.update(counts)
        found += routes(router, 2)
    assert found == [0, 1, 2, 0, 1, 2], f"got {found}: a report neither begins the round anew nor chooses in it"


def test_upstreams_score(impl):
    router = impl.LeastLoaded(3)
    router.update([(1, 0), (0, 3), (0, 5)])
    found = routes(router, 4)
    assert found == [1, 0, 2, 1], (
        f"counts (1, 0), (0, 3), (0, 5): got {found}, expected [1, 0, 2, 1]: a waiting request weighs four running ones"
    )


def test_between_two_updates_nobody_herds(impl):
    router = impl.LeastLoaded(4)
    assert routes(router, 5) == [0, 1, 2, 3, 0], "each choice counts at once, as one more that waits"
    router.update([(0, 0)] * 4)
    assert routes(router, 2) == [0, 1], "a report replaces what was counted since the last one"


def test_clients_start_apart(impl):
    for index, count, replicas, wanted in (
        (1, 2, 4, [2, 3, 0, 1, 2]),
        (2, 3, 4, [2, 3, 0, 1, 2]),
        (3, 4, 8, [6, 7, 0, 1, 2]),
    ):
        found = routes(impl.LeastLoaded(replicas, index, count), 5)
        assert found == wanted, f"client {index} of {count}, {replicas} idle replicas: got {found}, expected {wanted}"


def test_an_increment_speaks_for_all_clients(impl):
    router = impl.LeastLoaded(2, client_index=0, client_count=2)
    router.update([(0, 0), (0, 6)])
    assert routes(router, 3) == [0, 1, 0], "two clients see the same report: a choice of one is a choice of both"


def test_the_statistics_are_the_callers(impl):
    for make in (impl.RoundRobin, impl.LeastLoaded, impl.Sticky, impl.PrefixAware):
        counts = [[0, 0], [2, 6]]
        router = make(2)
        router.update(counts)
        routes(router, 4)
        assert counts == [[0, 0], [2, 6]], f"{make.__name__}: the caller's counts became {counts}"
        counts[0][0] = 50
        if make is impl.LeastLoaded:
            other = impl.LeastLoaded(2)
            other.update([[0, 0], [2, 6]])
            routes(other, 4)
            assert routes(router, 3) == routes(other, 3), "LeastLoaded still looks at the caller's list"


def test_doors(impl):
    for make in (impl.RoundRobin, impl.LeastLoaded, impl.Sticky, impl.PrefixAware):
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=rf"^num_replicas must be at least 1, got {wrong}$"):
                make(wrong)
        for counts in ([(0, 0)] * 3, [(0, 0)] * 5, []):
            with pytest.raises(ValueError, match=rf"^update: {len(counts)} counts for 4 replicas$"):
                make(4).update(counts)
    router = impl.LeastLoaded(3)
    router.update([(9, 9), (0, 0), (9, 9)])
    with pytest.raises(ValueError, match=r"^update: 4 counts for 3 replicas$"):
        router.update([(0, 0), (9, 9), (9, 9), (9, 9)])
    assert router.route(PROMPT) == 1, "a report that was refused is not heard"
    for index, count in ((2, 2), (5, 2), (-1, 2), (0, 0)):
        says = rf"^client_index {index} must be from 0 to below client_count {count}$"
        with pytest.raises(ValueError, match=says):
            impl.LeastLoaded(4, index, count)


def test_it_chooses_as_the_real_router(impl):
    """40 runs of the release's own function: two to eight replicas, one to four clients."""
    for number, episode in enumerate(EPISODES):
        router = impl.LeastLoaded(episode["replicas"], episode["client_index"], episode["client_count"])
        for step in episode["rounds"]:
            if step["counts"] is not None:
                router.update(step["counts"])
            found = routes(router, len(step["routes"]))
            assert found == step["routes"], f"run {number}, counts {step['counts']}: got {found}, vLLM {step['routes']}"


# ---- prefixes ------------------------------------------------------------------------------------------------------


def test_a_prefix_has_a_home(impl):
    router = impl.Sticky(3)
    prompts = [
        [tenant] * 16 + [own] for tenant, own in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (3, 9), (4, 4), (5, 0))
    ]
    assert [router.route(each) for each in prompts] == [0, 1, 2, 0, 0, 2, 0, 1], "homes in turns, as prefixes come"
    router.update([(50, 9), (0, 0), (0, 0)])
    assert router.route(prompts[0]) == 0, "whatever the counts"
    for each in range(1000):
        router.route([100 + each] * 16)
    assert router.route(prompts[1]) == 1, "always: after a thousand other prefixes, too"
    router = impl.Sticky(3)
    turns = [router.route(list(each)) for each in ((1, 2), (2, 1), (1, 2))]
    assert turns == [0, 1, 0], f"the same tokens in another order are another prefix: got {turns}"
    router = impl.Sticky(3)
    for each in ([1] * 16, [2] * 16):
        router.route(each)
    assert router.route([1] * 15) == 2 and router.route([1] * 15) == 2, "a short prompt is a prefix of its own"
    for size, wanted in ((2, [0, 0, 1]), (3, [0, 1, 0])):
        router = impl.Sticky(2, block_size=size)
        found = [router.route(each) for each in ([7, 7, 1], [7, 7, 2], [8, 8, 1])]
        assert found == wanted, f"prefixes of {size} tokens: got {found}, expected {wanted}"


def test_an_idle_house_follows_the_prefix(impl):
    """Nobody waits anywhere: the second request of a tenant goes where the first one went."""
    for size in (4, 16):
        router = impl.PrefixAware(4, size)
        prompts = [[100 * tenant + i for i in range(2 * size)] for tenant in range(4)]
        homes = [router.route(each + [1] * size) for each in prompts]
        again = []
        for each in prompts:
            router.update([(0, 0)] * 4)
            again.append(router.route(each + [2] * size))
        assert again == homes, f"blocks of {size}: four prefixes went to {homes}, and then to {again}"


def test_a_full_home_is_left(impl):
    router = impl.PrefixAware(4)
    home = router.route(PROMPT)
    counts = [(0, 1)] * 4
    router.update(counts)
    assert router.route(PROMPT) == home, "a little load is no reason to compute a prefix again"
    counts[home] = (50, 0)
    router.update(counts)
    assert router.route(PROMPT) != home, f"50 wait at replica {home}, nobody elsewhere, and the prompt is sent there"


def test_the_statistics_are_used(impl):
    router = impl.PrefixAware(4)
    router.update([(0, 0), (50, 16), (0, 0), (0, 0)])
    found = {router.route([100 * each + i for i in range(40)]) for each in range(3)}
    assert 1 not in found, f"three new prefixes, replica 1 has 50 waiting: got {sorted(found)}"
    assert len(found) > 1, f"three new prefixes after one report, three idle replicas: all went to {sorted(found)[0]}"


def test_memory_is_bounded(impl):
    for most, prompts in ((4096, 1100), (64, 300)):
        router = impl.PrefixAware(4, max_entries=most)
        assert len(router) == 0
        for each in range(prompts):
            router.route([each * 70 + i for i in range(64)])
        assert 0 < len(router) <= most, f"{prompts} prefixes seen, {most} may be remembered: got {len(router)}"
    homes = {}
    for each in range(500, 540):  # each has a replica that is free, while 50 wait elsewhere; then nobody waits
        router.update([(0 if replica == each % 4 else 50, 0) for replica in range(4)])
        homes[each] = router.route([each * 70 + i for i in range(64)])
        for seen in sorted(homes)[-2:]:
            router.update([(0, 0)] * 4)
            found = router.route([seen * 70 + i for i in range(64)])
            says = f"the last prefixes are the ones to remember: one went to {homes[seen]}, and then to {found}"
            assert found == homes[seen], says
    router = impl.PrefixAware(4, max_entries=1)
    assert {router.route(PROMPT) for _ in range(9)} <= {0, 1, 2, 3} and len(router) <= 1


def prefix(number):
    """A prompt of one block, of 16 tokens."""
    return [number * 20 + i for i in range(16)]


def sent_to(router, replica, prompt):
    """Routes a prompt while 50 wait everywhere but at one replica."""
    router.update([(0 if each == replica else 50, 0) for each in range(4)])
    return router.route(prompt)


def home_of(router, prompt):
    """Routes a prompt while nobody waits: its home, where it has one."""
    router.update([(0, 0)] * 4)
    return router.route(prompt)


def test_all_replicas_share_the_memory(impl):
    """`len` counts the prefixes of all replicas, and `max_entries` is for all of them, be it for one prefix alone."""
    router = impl.PrefixAware(4)
    for each in range(4):
        assert sent_to(router, each, prefix(each)) == each
    assert len(router) >= 4, f"four prefixes, one at each replica: got len {len(router)}"
    for most in (1, 2, 3):
        router = impl.PrefixAware(4, max_entries=most)
        for each in (3, 1, 2, 0):
            sent_to(router, each, prefix(each))
            found = home_of(router, prefix(each))
            assert found == each, f"{most} may be remembered: the last prefix went to {each}, and then to {found}"


def test_what_comes_again_is_not_forgotten(impl):
    """Eight may be remembered; thirty new prefixes come, and between them one that was there before them."""
    for home in range(4):
        router = impl.PrefixAware(4, max_entries=8)
        sent_to(router, home, prefix(0))
        for each in range(1, 31):
            sent_to(router, (home + each) % 4, prefix(each))
            found = home_of(router, prefix(0))
            assert found == home, (
                f"replica {home} had this prefix {each} times, the last time one prefix ago; then it went to {found}"
            )


def test_a_prefix_is_where_it_was_sent(impl):
    """First to one replica and then, while that was full, to another one: both have it, and nobody else has."""
    for home in range(4):
        for other in {*range(4)} - {home}:
            router = impl.PrefixAware(4)
            sent_to(router, home, prefix(0))
            sent_to(router, other, prefix(0))
            found = home_of(router, prefix(0) + [1] * 16)
            assert found in (home, other), f"sent to {home} and {other}, and with nobody waiting to {found}"


def test_the_prompt_is_left_alone(impl):
    for make in (impl.RoundRobin, impl.LeastLoaded, impl.Sticky, impl.PrefixAware):
        prompt = [9, 4, 7] * 12
        make(4).route(prompt)
        assert prompt == [9, 4, 7] * 12, f"{make.__name__} changed the prompt"


def test_any_prompt_has_a_replica(impl):
    chance = random.Random(1)
    for make in (impl.RoundRobin, impl.LeastLoaded, impl.Sticky, impl.PrefixAware):
        for replicas in (1, 3):
            router = make(replicas)
            for length in (0, 1, 15, 16, 17, 100):
                found = router.route(tuple(chance.randrange(99) for _ in range(length)))
                assert found in range(replicas), f"{make.__name__}({replicas}), {length} tokens: got {found!r}"


# ---- traffic -------------------------------------------------------------------------------------------------------


@cache
def traffic(skew, per_tick, seed):
    return sim.workload(skew, per_tick=per_tick, seed=seed)


@pytest.fixture(scope="module")
def served(impl):
    """served(name of a router, skew, arrivals a tick, seed): what the simulation says; each is run once."""
    return cache(lambda name, *kind: sim.simulate(getattr(impl, name)(4), traffic(*kind)))


def test_sticky_can_lose(impl, served):
    for seed in (0, 1):
        sticky, least = (served(name, 1.5, 1.5, seed) for name in ("Sticky", "LeastLoaded"))
        ratio = sticky["mean"] / least["mean"]
        assert sticky["hit_rate"] > 0.85 > least["hit_rate"], "the best hit rate of all"
        assert ratio > 10, f"seed {seed}: sticky takes {ratio:.1f} times as long to the first token, expected above 10"


def test_your_prediction(impl, served):
    sticky, least = (served(name, 1.5, 1.5, 0) for name in ("Sticky", "LeastLoaded"))
    ratio, mine = sticky["mean"] / least["mean"], impl.predicted_ratio()
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number"
    assert ratio / 2 <= mine <= 2 * ratio, (
        f"you said {mine}: {sticky['mean']:.1f} ticks with Sticky (hit rate {sticky['hit_rate']:.0%}), "
        f"{least['mean']:.2f} with LeastLoaded (hit rate {least['hit_rate']:.0%}), {ratio:.0f} times as many"
    )


@pytest.mark.parametrize("seed", range(2))
def test_prefix_aware_keeps_both(impl, served, seed):
    """A skewed workload: hits of 70 per cent, and no longer waits than without."""
    mine, least = (served(name, 1.5, 1.5, seed) for name in ("PrefixAware", "LeastLoaded"))
    assert mine["hit_rate"] >= 0.7, (
        f"hit rate {mine['hit_rate']:.2f}, expected 0.70 or more; least loaded has {least['hit_rate']:.2f}. Does the "
        "prefix decide anything? Where the whole prompt is the key, it never does"
    )
    assert mine["mean"] <= least["mean"], (
        f"seed {seed}: mean TTFT {mine['mean']:.2f} ticks, expected at most {least['mean']:.2f}; hit rate "
        f"{mine['hit_rate']:.2f}, and up to {max(map(max, mine['queues']))} wait in one queue. What is a hit worth, in "
        "places of that queue?"
    )
    assert mine["imbalance"] <= 1.25, (
        f"seed {seed}: the busiest replica got {mine['imbalance']:.2f} times the mean, expected at most 1.25"
    )


@pytest.mark.parametrize("seed", range(2))
def test_even_traffic_is_worth_affinity(impl, served, seed):
    mine, turns = (served(name, 0.0, 0.9, seed) for name in ("PrefixAware", "RoundRobin"))
    assert mine["hit_rate"] >= 0.6, (
        f"seed {seed}: hit rate {mine['hit_rate']:.2f}, expected 0.60 or more; turns: {turns['hit_rate']:.2f}"
    )
    assert mine["mean"] <= 0.8 * turns["mean"], (
        f"seed {seed}: mean TTFT {mine['mean']:.2f} ticks, expected at most .8 of round robin's {turns['mean']:.2f}"
    )
