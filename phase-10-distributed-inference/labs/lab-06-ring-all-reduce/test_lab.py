"""Lab 10-06: sums over processes that see two neighbours: what comes out, what it costs, and what goes wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close, patience
from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
LOOKS = "Everybody writes and nobody reads: this looks like *Send first*"


def limit_s():
    """What only a hang reaches."""
    return patience(8.0)


def integers(seed, ranks, *shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, shape).astype(dtype) for _ in range(ranks)]


def normals(seed, ranks, *shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(ranks)]


def run(fn, xs, what, **more):
    """What each rank's `fn` gave, and the bytes that it sent; all of them must have ended well."""
    found = given.launch(fn, xs, limit_s=limit_s(), **more)
    hung = sum(each[0] == "hang" for each in found)
    assert not hung, f"{what}: {hung} of {len(xs)} ranks still wait after {limit_s():.0f} s. {LOOKS}"
    errors = [f"rank {rank}: {each[1]}: {each[2]}" for rank, each in enumerate(found) if each[0] == "err"]
    assert not errors, f"{what}: got {'; '.join(errors)}, expected the sum. The first one to leave began it"
    return [each[1] for each in found], [each[2] for each in found]


# ---- the sum -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [(1, (5,)), (2, (4, 3)), (3, (7,)), (4, (8, 8)), (4, (3, 1, 3)), (5, (3,)), (3, (0, 4)), (4, ())],
)
def test_sums_exactly(impl, ranks, shape):
    xs = integers(ranks, ranks, *shape)
    what = f"{ranks} ranks, shape {shape}"
    results, _ = run(impl.all_reduce, xs, what)
    for rank, found in enumerate(results):
        close(found, sum(xs), f"{what}, rank {rank}", 0)


def test_again_and_again(impl):
    """Three sums one after the other on the same pipes: nothing of one is left for the next."""

    def three(x, link):
        return [impl.all_reduce(x[:n] * n, link) for n in (5, 1, 7)]

    xs = integers(9, 3, 7)
    results, _ = run(three, xs, "three sums in a row")
    for n, found in zip((5, 1, 7), results[1], strict=True):
        close(found, sum(xs)[:n] * n, f"the sum of {n} numbers", 0)


@pytest.mark.parametrize("ranks", (3, 5))
def test_same_bits_everywhere(impl, ranks):
    def three(x, link):
        return np.concatenate([impl.all_reduce(row, link) for row in x])

    results, _ = run(three, normals(0, ranks, 3, 500), f"{ranks} ranks")
    apart = [int((results[0] != each).sum()) for each in results]
    assert not any(apart), f"{apart} of 1,500 numbers differ from rank 0's, by ranks; expected none"


@pytest.mark.parametrize("dtype", ("float16", "float64", "int32", "complex64"))
def test_dtype_stays(impl, dtype):
    factor = 1 + 2j if dtype == "complex64" else 1
    xs = [(each * factor).astype(dtype) for each in integers(1, 3, 50, dtype=dtype)]
    results, sent = run(impl.all_reduce, xs, dtype)
    assert results[2].dtype == np.dtype(dtype), f"arrays of {dtype}: got {results[2].dtype}"
    close(results[2], sum(xs).astype(dtype), dtype, 0)
    size = np.dtype(dtype).itemsize
    assert sum(sent) == 4 * 50 * size, (
        f"{dtype}: {sum(sent)} bytes sent by all, expected {4 * 50 * size}: {size} a number"
    )


def test_each_hop_adds_in_this_type(impl):
    """2048 + 1 + 1 in float16 is 2048, whoever adds first; a wider sum would be 2050."""
    xs = [np.full(6, value, np.float16) for value in (2048, 1, 1)]
    results, _ = run(impl.all_reduce, xs, "float16")
    ways = {2048.0, 2050.0}  # (2048 + 1) + 1, or 2048 + (1 + 1): where the tour of a part begins decides
    assert set(results[0].tolist()) <= ways and 2048.0 in results[0], f"got {results[0].tolist()}, expected 2048 in it"


def test_the_input_is_left_alone(impl):
    def both(x, link):
        before = x.copy()
        total = impl.all_reduce(x, link)
        total[:] = 0
        return bool((x == before).all())

    for ranks in (1, 3):
        results, _ = run(both, integers(2, ranks, 40), f"{ranks} ranks")
        assert all(results), f"{ranks} ranks: x is not what it was, or the result shares its memory"


def test_any_layout(impl):
    """A transposed array and every second column: flattened in the order of their indices."""

    def two(x, link):
        return impl.all_reduce(x.T, link), impl.all_reduce(x[:, ::2], link)

    xs = integers(3, 2, 6, 4)
    results, _ = run(two, xs, "views")
    close(results[0][0], sum(xs).T, "x.T", 0)
    close(results[1][1], sum(xs)[:, ::2], "x[:, ::2]", 0)


# ---- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "size", "wanted"),
    [(4, 1024, [6144] * 4), (2, 1024, [4096] * 2), (3, 7, None), (1, 1024, [0]), (5, 3, None)],
)
def test_bytes_on_the_wire(impl, ranks, size, wanted):
    xs = integers(4, ranks, size)
    _, sent = run(impl.all_reduce, xs, f"{ranks} ranks")
    total = 2 * (ranks - 1) * xs[0].nbytes
    assert sum(sent) == total and (wanted is None or sent == wanted), (
        f"{ranks} ranks sent {sent} bytes for an array of {xs[0].nbytes}; 2(N-1)/N of it allow {wanted or total}. "
        "Do whole arrays travel? Where numbers are fewer than ranks, does a rank take another's empty part for its own?"
    )
    most = 2 * (ranks - 1) * 4 * -(-size // ranks)
    assert max(sent) <= most, f"one rank sent {max(sent)} bytes, at most {most} are its parts"


@pytest.mark.parametrize(("ranks", "size"), [(4, 10), (3, 2), (1, 5)])
def test_parts_cover_once(impl, ranks, size):
    def program(x, link):
        before = x.copy()
        return impl.reduce_scatter(x, link), bool((x == before).all())

    xs = integers(5, ranks, size)
    found, sent = run(program, xs, f"{ranks} ranks, {size} numbers")
    results = [each for each, _ in found]
    assert all(same for _, same in found), "reduce_scatter: x is not what it was"
    spans = sorted((part.start, part.stop) for part, _ in results)
    cuts = np.cumsum([0] + [len(each) for each in np.array_split(np.arange(size), ranks)])
    wanted = sorted(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    assert spans == wanted, f"{ranks} ranks, {size} numbers: got parts {spans}, expected {wanted}"
    for part, values in results:
        close(values, sum(xs)[part], f"the sums of numbers {part.start} to {part.stop}", 0)
    assert sum(sent) == (ranks - 1) * xs[0].nbytes, f"{sum(sent)} bytes sent, half of an all-reduce is enough"


def test_everybody_gets_everything(impl):
    # only where the parts lie as reduce_scatter leaves them: ask it first which ones each rank has
    owners, _ = run(impl.reduce_scatter, integers(6, 3, 10), "reduce_scatter")
    parts = np.array_split(np.arange(10, dtype=np.float64) * 1.5, 3)
    whole = np.concatenate(parts)

    def program(span, link):
        values = whole[span].copy()
        found = impl.all_gather(span, values, 10, link)
        return found, bool((values == whole[span]).all())

    results, _ = run(program, [span for span, _ in owners], "all_gather")
    for rank, (found, same) in enumerate(results):
        close(found, whole, f"all_gather, rank {rank}", 0)
        assert same, f"all_gather, rank {rank}: the caller's values are not what they were"


# ---- and where it goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "size"), [(4, 200_000), (2, 60_000)])
def test_larger_than_the_pipe(impl, ranks, size):
    xs = integers(7, ranks, size)
    results, _ = run(impl.all_reduce, xs, f"{size:,} floats on {ranks} ranks")
    close(results[-1], sum(xs), f"{size:,} floats", 0)


@pytest.mark.parametrize(("after", "size"), [(0, 1024), (1024, 1024), (4096, 1024), (4096, 200_000)])
def test_a_dead_neighbour_is_named(impl, after, size):
    """Rank 2 of 4 ends at once, after a hop, after four, amid a part: nobody waits for ever, and somebody is named."""
    found = given.launch(impl.all_reduce, integers(8, 4, size), kill=(2, after), limit_s=limit_s())
    states = [each[0] for each in found]
    assert states[2] == "dead" and "hang" not in states, f"rank 2 died after {after} bytes: got {states}"
    errors = [each for each in found if each[0] == "err"]
    assert errors and found[3][0] == "err", f"rank 2 died after {after} bytes: got {states}, rank 3 cannot have its sum"
    for each in errors:
        said = each[1] == "ConnectionError" and re.fullmatch(r"rank \d: rank \d is gone", each[2])
        assert said, f"got {each[1]}: {each[2]!r}, expected ConnectionError: 'rank 3: rank 2 is gone' or the like"
    named = [each[2] for each in errors if each[2].endswith("rank 2 is gone")]
    assert named, f"nobody names rank 2: {[each[2] for each in errors]}"
    for rank, each in enumerate(found):
        if each[0] == "err":
            ends = f"rank {rank}: rank {(rank - 1) % 4} is gone", f"rank {rank}: rank {(rank + 1) % 4} is gone"
            assert each[2] in ends, f"rank {rank} says {each[2]!r}; it sees its two neighbours only"


def test_the_one_behind_the_pipe_is_named(impl):
    """Rank 2 is dead, rank 0 lives and says nothing: rank 1 finds out where it writes, and must not blame rank 0."""

    def program(x, link):
        return impl.all_reduce(x, link, 60.0) if link.rank else link.ready(60.0, False, False)

    found = given.launch(program, integers(8, 3, 60_000), kill=(2, 0), leave=0, limit_s=limit_s())
    wanted = ("err", "ConnectionError", "rank 1: rank 2 is gone")
    assert found[1] == wanted, f"rank 2 is dead, rank 0 lives: got {found[1]}, expected {wanted}. Who reads this pipe?"


@pytest.mark.parametrize(("ranks", "silent", "size"), [(3, 1, 30), (2, 0, 30), (2, 0, 1), (2, 1, 1)])
def test_a_silent_neighbour_times_out(impl, ranks, silent, size):
    """With one number for two ranks one of them has nothing to send: it waits from its first moment on."""

    def program(x, link):
        if link.rank == silent:
            return link.ready(60.0, False, False)
        return impl.all_reduce(x, link, 0.1)

    found = given.launch(program, integers(8, ranks, size), leave=silent, limit_s=limit_s())
    others = [(rank, each) for rank, each in enumerate(found) if rank != silent]
    assert all(each[0] == "err" for _, each in others), f"rank {silent} says nothing: got {[each[0] for each in found]}"
    late = [(rank, each) for rank, each in others if each[1] == "TimeoutError"]
    assert late, f"got {[each[1:] for _, each in others]}, expected a TimeoutError"
    for rank, each in late:
        said = f"rank {rank}: no progress with ranks {(rank - 1) % ranks} and {(rank + 1) % ranks} for 0.1 s"
        assert each[2] == said, f"got {each[2]!r}, expected {said!r}"


@pytest.mark.parametrize("half", (0, 1))
def test_each_call_has_its_own_clock(impl, half):
    """A first sum with time enough; in the second one rank 1 falls silent before the first half, or between the two."""

    def program(x, link):
        impl.all_reduce(x, link, 60.0)
        if link.rank != 1:
            return impl.all_reduce(x, link, 0.1)
        if half:
            impl.reduce_scatter(x, link, 60.0)
        return link.ready(60.0, False, False)

    found = given.launch(program, integers(8, 3, 30), leave=1, limit_s=limit_s())
    said = [each[1:] for rank, each in enumerate(found) if rank != 1]
    assert all(each[0] == "err" for each in found[::2]), f"rank 1 falls silent: got {[each[0] for each in found]}"
    late = [each for each in said if each[0] == "TimeoutError" and each[1].endswith(" for 0.1 s")]
    assert late, f"got {said}, expected a TimeoutError after 0.1 s"


@pytest.mark.slow
def test_slow_is_not_silent(impl):
    """A neighbour whose part of 12 bytes needs longer than the limit, each 4 of them not: progress counts."""

    for scale in (1, 4):  # a busy machine is slow itself: then once more, with more time for all

        def program(x, link, scale=scale):
            if link.rank == 0:
                return impl.all_reduce(x, link, 2.0 * scale)
            for _ in range(3):
                link.ready(0.75 * scale, False, False)
                link.write(bytes(4))
            link.write(bytes(12))  # the other part of the sum
            while link.read(1 << 16):
                pass
            return None

        found = given.launch(program, integers(9, 2, 6), limit_s=limit_s() * scale)
        if found[0][0] == "ok":
            break
    said = [each[:3] for each in found if each[0] != "ok"]
    assert not said, f"4 bytes every 0.75 s, where 2 s may pass without any: got {said}, expected the sum"
    found = found[0][1]
    assert sorted(map(abs, found))[:3] == [0, 0, 0], f"zeros came in for half of the sum: got {found}"


@pytest.mark.slow
def test_a_slow_reader_is_not_silent(impl):
    """A neighbour that reads a piece of the part every 0.75 s and writes last: what goes is progress, as what comes."""
    count = 4 * given.pipe_capacity() // 4  # float32 numbers of a part, four pipes full

    for scale in (1, 4):

        def program(x, link, scale=scale):
            if link.rank == 0:
                return impl.reduce_scatter(x, link, 2.0 * scale)[1][:3].copy()
            left = 4 * count
            while left:
                link.ready(0.75 * scale, False, False)
                piece = min(left, given.pipe_capacity())
                while piece:
                    data = link.read(piece)
                    piece, left = piece - len(data), left - len(data)
            out = bytes(4 * count)
            while out:
                out = out[link.write(out) :]
            return None

        found = given.launch(program, integers(9, 2, 2 * count), limit_s=limit_s() * scale)
        if all(each[0] == "ok" for each in found):
            break
    said = [each[:3] for each in found if each[0] != "ok"]
    assert not said, f"a piece taken every 0.75 s, where 2 s may pass without any: got {said}, expected the sum"


class Slowly:
    """A link that hands over a few bytes at a time."""

    def __init__(self, link, pause_s):
        self._link, self._pause_s = link, pause_s

    def __getattr__(self, name):
        return getattr(self._link, name)

    def write(self, data, wait=True):
        import time

        time.sleep(self._pause_s)
        return self._link.write(data[:32], wait)


@pytest.mark.slow
def test_a_trickle_is_progress(impl):
    """Rank 1 takes 2.25 s for its part, and 0.25 s for a piece of it. Rank 0 waits for 2 s of nothing."""

    for scale in (1, 4):

        def program(x, link, scale=scale):
            slowly = Slowly(link, 0.25 * scale) if link.rank else link
            return impl.reduce_scatter(x, slowly, 60.0 if link.rank else 2.0 * scale)

        found = given.launch(program, integers(9, 2, 136), limit_s=limit_s() * scale)
        if all(each[0] == "ok" for each in found):
            break
    said = [each[:3] for each in found if each[0] != "ok"]
    assert not said, f"got {said}, expected the sum: timeout_s is for how long nothing comes, not for the whole part"


def test_your_prediction(impl):
    capacity, mine = given.pipe_capacity(), impl.predicted_tokens()
    wanted = 1 + capacity * 2 // (256 * 4)
    assert isinstance(mine, int), f"got {mine!r}, expected a number of tokens"
    if capacity != 65_536:
        mine = mine - 1 - 65_536 * 2 // 1024 + wanted  # this machine's pipes hold something else
    assert mine == wanted, (
        f"you said {impl.predicted_tokens()}. A part of 65,536 bytes is taken whole, one byte more is not; a part is "
        "half of the array, and a token has 1,024 bytes"
    )
