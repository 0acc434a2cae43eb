"""Guards around a learner's parts: a wrong part is told which rule of the engine it broke, and in which lab.

The guards stand around lab code only; our own parts run bare. Each looks at what goes in and what comes out, so that a
fault is told where it is made, not three steps later as a wrong token. I1 to I4 are of phase 02, S1 to S5 of 03."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course.labs import COURSE, tomllib
from mini_vllm.engine.parts import PartError

RULES: dict[str, str] = tomllib.loads((COURSE / "plugs.toml").read_text(encoding="utf-8"))["rules"]
SMALL_POOL = 256
"""Pools up to this size are walked from end to end after every call, larger ones every `WALK_EVERY` calls."""
WALK_EVERY = 512


class Watch:
    """Turns every fault of a lab part into a `PartError` that names lab, part and rule; the first one is final."""

    def __init__(self, part: str, lab: str) -> None:
        self.part, self.lab = part, lab
        self.first: PartError | None = None
        self.num_calls = 0

    def error(self, text: str, rule: str = "") -> PartError:
        """The error to raise: what happened, and the rule in words."""
        broken = f"{rule} broken: " if rule else ""
        words = f" ({rule}: {RULES[rule]})" if rule else ""
        self.first = PartError(f"lab {self.lab} ({self.part}): {broken}{text}{words}", self.part, self.lab, rule)
        return self.first

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the learner's function. Whatever it raises becomes one sentence with the line it came from."""
        if self.first is not None:
            raise self.first
        self.num_calls += 1
        name = getattr(function, "__name__", str(function))
        try:
            return function(*args, **kwargs)
        except PartError:
            raise
        except NotImplementedError as error:
            raise self.error(f"{name} is not written yet: {error}") from None
        except Exception as error:
            raise self.error(f"{name} raised {type(error).__name__}: {error}{_line_of(error)}") from None

    def require(self, holds: Any, text: str, rule: str = "") -> None:
        """Raise unless `holds`."""
        if not holds:
            raise self.error(text, rule)


def _line_of(error: BaseException) -> str:
    """ " (starter.py:42)" for the deepest frame in a lab file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/labs/lab-" in f.filename.replace("\\", "/")]
    return f" ({frames[-1].filename.replace(chr(92), '/').rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""


class GuardedPool:
    """A learner's block pool (or ours around a learner's queue) with the methods of `BlockPool`, each call checked in
    O(its blocks). It keeps its own count of the users of every block. `owner_of(block)`: the request that holds it."""

    def __init__(self, pool: Any, watch: Watch) -> None:
        for name in ("num_gpu_blocks", "blocks", "null_block", "free_block_queue"):
            watch.require(hasattr(pool, name), f"the pool has no attribute {name}")
        self._pool, self._watch = pool, watch
        self._users = [0] * pool.num_gpu_blocks
        self._num_used = 0
        self._num_calls = 0
        self.owner_of: Callable[[int], str | None] = lambda block_id: None
        watch.require(pool.null_block is pool.blocks[0], "the null block must be block 0", "I1")
        self._after([])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        if num_blocks > len(self._users) - 1 - self._num_used:
            return self._overdraw(num_blocks)
        blocks = self._watch.call(self._pool.get_new_blocks, num_blocks)
        self._watch.require(
            isinstance(blocks, list) and len(blocks) == num_blocks,
            f"get_new_blocks({num_blocks}) must return a list of {num_blocks} blocks, got {_short(blocks)}",
        )
        for block in blocks:
            self._is_ours(block)
            at = block.block_id
            self._watch.require(at, "block 0, the null block, was handed out", "I1")
            self._watch.require(not self._users[at], f"block {at} handed out while in use{self._by(at)}", "I1")
            old = f"block {at} handed out with the hash of its old content"
            self._watch.require(block.block_hash is None, old, "I3")
            self._users[at] = 1
        self._num_used += num_blocks
        self._after(blocks)
        return blocks

    def _overdraw(self, num_blocks: int) -> list[Any]:
        try:
            self._pool.get_new_blocks(num_blocks)
        except ValueError:
            self._after([])
            raise
        free = len(self._users) - 1 - self._num_used
        raise self._watch.error(f"get_new_blocks({num_blocks}) must raise ValueError while {free} are free", "I1")

    def touch(self, blocks: Iterable[Any]) -> None:
        blocks = list(blocks)
        hashes = [block.block_hash for block in blocks]
        self._watch.call(self._pool.touch, blocks)
        for block, before in zip(blocks, hashes, strict=True):
            self._watch.require(block.block_hash == before, f"touch() changed the hash of block {block.block_id}", "I4")
            self._users[block.block_id] += 1
            self._num_used += self._users[block.block_id] == 1
        self._after(blocks)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        hashes = [block.block_hash for block in blocks]
        self._watch.call(self._pool.free_blocks, list(blocks))
        for block, before in zip(blocks, hashes, strict=True):
            at = block.block_id
            self._users[at] -= 1
            self._num_used -= self._users[at] == 0
            self._watch.require(block.block_hash == before, f"block {at} lost its hash when it was freed", "I4")
            found = before is None or self._watch.call(self._pool.get_cached_block, before) is not None
            self._watch.require(found, f"block {at} was cached, and cannot be found since it was freed", "I4")
        self._after(blocks)

    def get_cached_block(self, block_hash: bytes) -> Any:
        block = self._watch.call(self._pool.get_cached_block, block_hash)
        if block is not None:
            self._is_ours(block)
            found = f"get_cached_block returned block {block.block_id}, whose hash is another"
            self._watch.require(block.block_hash == block_hash, found, "I3")
        return block

    def cache_full_blocks(
        self, block_hashes: Sequence[bytes], blocks: Sequence[Any], num_cached_blocks: int, num_full_blocks: int
    ) -> None:
        self._watch.call(self._pool.cache_full_blocks, block_hashes, blocks, num_cached_blocks, num_full_blocks)
        for i in range(num_cached_blocks, num_full_blocks):
            at = blocks[i].block_id
            self._watch.require(blocks[i].block_hash == block_hashes[i], f"full block {at} did not get its hash", "I3")
            found = self._watch.call(self._pool.get_cached_block, block_hashes[i]) is not None
            self._watch.require(found, f"block {at} has a hash and cannot be found by it", "I3")
        for block in blocks[num_full_blocks:]:
            early = f"block {block.block_id} got a hash and is not full yet"
            self._watch.require(block.block_hash is None, early, "I3")

    def evict_blocks(self, blocks: Iterable[Any]) -> None:
        blocks = list(blocks)
        self._watch.call(self._pool.evict_blocks, blocks)
        for block in blocks:
            self._watch.require(block.block_hash is None, f"block {block.block_id} was evicted and has a hash", "I3")

    def reset_prefix_cache(self) -> bool:
        done = self._watch.call(self._pool.reset_prefix_cache)
        self._watch.require(done == (self._num_used == 0), "reset_prefix_cache is for a pool that nobody uses", "I3")
        self._after([])
        return done

    def get_num_free_blocks(self) -> int:
        count, expected = self._watch.call(self._pool.get_num_free_blocks), len(self._users) - 1 - self._num_used
        self._watch.require(count == expected, f"{count} blocks are counted as free, {expected} have no user", "I1")
        return count

    def get_usage(self) -> float:
        return self._watch.call(self._pool.get_usage)

    def _is_ours(self, block: Any) -> None:
        at = getattr(block, "block_id", None)
        known = isinstance(at, int) and 0 <= at < len(self._users) and self._pool.blocks[at] is block
        self._watch.require(known, f"{_short(block)} is not block {at} of the pool", "I2")

    def _by(self, block_id: int) -> str:
        owner = self.owner_of(block_id)
        return f" by request {owner!r}" if owner is not None else ""

    def _after(self, blocks: list[Any]) -> None:
        """The blocks of this call, the count, and now and then the whole queue."""
        for block in blocks:
            at, users = block.block_id, self._users[block.block_id]
            self._watch.require(block.ref_cnt == users, f"block {at} has ref_cnt {block.ref_cnt}, not {users}", "I1")
            queued = block.prev_free_block is not None and block.next_free_block is not None
            where = "not in the free queue and has no user" if users == 0 else f"in the free queue{self._by(at)}"
            self._watch.require(queued == (users == 0 and at != 0), f"block {at} is {where}", "I1")
        self.get_num_free_blocks()
        if len(self._users) <= SMALL_POOL or self._num_calls % WALK_EVERY == 0:
            self._walk()
        self._num_calls += 1

    def _walk(self) -> None:
        blocks = self._watch.call(self._pool.free_block_queue.get_all_free_blocks)
        self._watch.require(isinstance(blocks, list), f"get_all_free_blocks must return a list, got {_short(blocks)}")
        queued = [block.block_id for block in blocks]
        unused = [at for at, users in enumerate(self._users) if users == 0 and at]
        if sorted(queued) != unused:
            odd = next((at for at in queued if self._users[at] or queued.count(at) > 1 or at < 1), None)
            lost = next((at for at in unused if at not in set(queued)), None)
            what = f"block {lost} has no user and is lost to the free queue"
            if odd is not None:
                what = f"block {odd} is in the free queue while in use{self._by(odd)} (or twice)"
            raise self._watch.error(what, "I1")


def guarded_hash(function: Callable[..., bytes], watch: Watch) -> Callable[..., bytes]:
    """A learner's `hash_block_tokens`: 32 bytes, the same for the same history, another for another."""
    seen: dict[bytes, tuple[Any, ...]] = {}

    def hash_block_tokens(parent: bytes | None, token_ids: Sequence[int], extra_keys: Any = None) -> bytes:
        value = watch.call(function, parent, token_ids, extra_keys)
        watch.require(isinstance(value, bytes), f"hash_block_tokens must return bytes, got {_short(value)}")
        history = (parent, tuple(token_ids), extra_keys)
        before = seen.setdefault(value, history)
        differs = "another parent" if before[0] != parent else "other tokens or keys"
        watch.require(
            before == history,
            f"two blocks with {differs} have one hash: the content found by it would belong to another text",
        )
        if len(seen) > 1 << 16:
            seen.clear()
        return value

    return hash_block_tokens


def guarded_stop(function: Callable[..., bool], watch: Watch) -> Callable[..., bool]:
    """A learner's `check_stop`, held against ours after every token."""
    from mini_vllm.core.sched.utils import check_stop as reference

    def check_stop(request: Any, max_model_len: int) -> bool:
        before = request.status, request.stop_reason
        answer = watch.call(function, request, max_model_len)
        theirs = bool(answer), request.status, request.stop_reason
        request.status, request.stop_reason = before
        ours = reference(request, max_model_len), request.status, request.stop_reason
        if theirs != ours:
            tokens = f"{request.num_output_tokens} of max_tokens={request.max_tokens} outputs"
            why = f"request {request.request_id!r} with {tokens}, the last one {request.output_token_ids[-1]}"
            raise watch.error(f"{why}: must {_verdict(*ours)}, and check_stop says {_verdict(*theirs)}")
        return bool(answer)

    return check_stop


def _verdict(ended: bool, status: Any, stop_reason: Any) -> str:
    reason = f", stop_reason={stop_reason!r}" if stop_reason is not None else ""
    return f"{'end' if ended else 'go on'} ({status}{reason})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
