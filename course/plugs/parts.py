"""The labs in the engine: which lab replaces which part, whether it is written yet, and the parts that result.

`mini_vllm` knows nothing of the course; it asks `engine_parts` for its parts when somebody writes `with_labs`."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from course.labs import COURSE, IMPLS, ROOT, LabError, load, stubs, tomllib, wanted_impl
from course.plugs.guards import GuardedPool, Watch, guarded_hash, guarded_stop
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.engine.parts import EngineParts, PartError, make_scheduler
from mini_vllm.plugins.engine_parts import ENGINE_PARTS_GROUP, register


@dataclass(frozen=True)
class Plug:
    """A part of the engine and the lab functions that replace it; the fields are those of `plugs.toml`."""

    part: str
    lab: str
    needs: Sequence[str]
    field: str
    only: dict[str, Any]

    def unlike(self, config: Any) -> str:
        """The first of these settings of which the lab knows nothing, "" where there is none."""
        given = {name: attrgetter(name)(config) for name in self.only if hasattr(config, name.partition(".")[0])}
        return next((f"{name}={given[name]!r}" for name in given if given[name] not in (self.only[name], None)), "")

    def covers(self, name: str) -> bool:
        """Whether a function of the lab has to be written first."""
        return any(name == need or (need.endswith("*") and name.startswith(need[:-1])) for need in self.needs)


TABLE = COURSE / "plugs.toml"
PLUGS = tuple(Plug(**row) for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["parts"])
NOT_YET = ("not written", "absent")
LABS = tuple(dict.fromkeys(plug.lab for plug in PLUGS))


@dataclass
class Part:
    """What was found for one plug. `state` is "lab" (plugged in), "not written" (with the stub's sentence), "absent"
    (its phase or lab is not here), "does not load" or "ours" (not asked for). Only the first replaces anything."""

    plug: Plug
    state: str
    detail: str = ""
    module: Any = None
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.plug.part, self.plug.lab)

    @property
    def glue(self) -> Any:
        """The lab's own: `plug.py` beside its code."""
        return load(Path(self.module.__file__).with_name("plug.py"))

    @property
    def origin(self) -> str:
        """Where the part comes from, in words."""
        if self.state == "lab":
            return f"lab {self.plug.lab}, {self.detail}"
        why = {"ours": "", "not written": " is not written yet: ", "absent": " is not here", "does not load": ": "}
        return "ours" if self.state == "ours" else f"ours (lab {self.plug.lab}{why[self.state]}{self.detail})"


def parse(with_labs: str | Sequence[str]) -> dict[str, str]:
    """What to take: lab number -> "starter" or "solution". `with_labs` is "all", a word such as "solution", numbers
    ("02-01,03-01"), or a list of these; LAB_IMPL decides where no word does, and without it the learner's starter.
    Raises ValueError for anything else."""
    words = [with_labs] if isinstance(with_labs, str) else list(with_labs)
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"with_labs must be a string or a list of strings, got {with_labs!r}")
    words = [w.strip() for word in words for w in word.split(",") if w.strip()]
    try:
        impl = wanted_impl() if os.environ.get("LAB_IMPL") else "starter"
    except LabError as error:
        raise ValueError(str(error)) from None
    named: list[str] = []
    for word in words:
        if word in IMPLS:
            impl = word
        elif word in LABS:
            named.append(word)
        elif word != "all":
            raise ValueError(
                f"with_labs: {word!r} is no lab with a plug; allowed are all, {', '.join(LABS)}, and the words "
                "starter (yours, the default) and solution (the references)"
            )
    return dict.fromkeys(LABS if not named or "all" in words else named, impl)


def find_parts(with_labs: str | Sequence[str] = "all", root: Path = ROOT) -> list[Part]:
    """One `Part` for each plug, in the order of the labs; each lab's file is executed once."""
    wanted, modules = parse(with_labs), dict[str, Any]()
    return [_find(plug, wanted.get(plug.lab), modules, root) for plug in PLUGS]


def _find(plug: Plug, impl: str | None, modules: dict[str, Any], root: Path) -> Part:
    if impl is None:
        return Part(plug, "ours")
    path = min(root.glob(f"phase-{plug.lab[:2]}-*/labs/lab-{plug.lab[3:]}-*/{impl}.py"), default=None)
    if path is None:
        return Part(plug, "absent")
    try:
        for _, name, sentence in stubs(path):
            if plug.covers(name):
                return Part(plug, "not written", f"{name}: {sentence}")
        if plug.lab not in modules:
            modules[plug.lab] = load(path)
        module = modules[plug.lab]
    except LabError as error:
        return Part(plug, "does not load", str(error))
    if missing := next((name for need in plug.needs if not hasattr(module, name := need.partition(".")[0])), None):
        return Part(plug, "not written", f"{path.name} has no {missing}")
    return Part(plug, "lab", path.relative_to(root).as_posix(), module)


def engine_parts(with_labs: str | Sequence[str] = "all", *, quiet: bool = False, root: Path = ROOT) -> EngineParts:
    """The engine's parts, the written ones from the labs, guarded; warmed up and told to stderr, unless `quiet`."""
    found = find_parts(with_labs, root)
    made = assemble(found, quiet)
    if not quiet:
        from course.plugs.warmup import warm_up

        warm_up(found, lambda text: print(text, file=sys.stderr))
    return made


register(ENGINE_PARTS_GROUP, engine_parts)


def waiting(found: Iterable[tuple[str, str]]) -> str:
    """(lab, part) of what is not written, lab by lab: ``01-05 stop conditions; 02-01 block hash, block pool``."""
    labs: dict[str, list[str]] = {}
    for lab, part in found:
        labs.setdefault(lab, []).append(part)
    return "; ".join(f"{lab} {', '.join(parts)}" for lab, parts in labs.items())


def assemble(found: Sequence[Part], quiet: bool = False) -> EngineParts:
    """`EngineParts` from what `find_parts` found."""
    by_name = {each.plug.part: each for each in found if each.state == "lab"}
    say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr))
    for each in found:
        if each.state in ("lab", "does not load"):
            say(f"{each.plug.part:16} {' '.join(each.origin.split())}")
    if names := waiting((each.plug.lab, each.plug.part) for each in found if each.state in NOT_YET):
        say(f"{'ours':16} {names}: not written yet")
    chosen: dict[str, Any] = {"origins": {each.plug.part: each.origin for each in found}}
    if part := by_name.get("sampling"):
        from course.plugs.model import LabSampler

        own = {"choose": staticmethod(part.module.sample), "watch": part.watch}
        chosen["sampler"] = type("LabSampler", (LabSampler,), own)
    if part := by_name.get("batch sampling"):
        chosen["sampler"] = part.glue.fit(part.module, part.watch)
    if part := by_name.get("stop conditions"):
        chosen["check_stop"] = guarded_stop(part.module.check_stop, part.watch)
    if part := by_name.get("block hash"):
        chosen["hash_block_tokens"] = guarded_hash(part.module.hash_block_tokens, part.watch)
    pools: list[GuardedPool] = []
    if part := by_name.get("block pool") or by_name.get("free queue"):
        chosen["block_pool"] = partial(_make_pool, part, pools)
    if part := by_name.get("paged attention"):
        chosen["attention"] = partial(_make_attention, part, say)
    if part := by_name.get("scheduler step"):
        chosen["scheduler"] = partial(_make_scheduler, part, say)
    if part := by_name.get("model"):
        chosen["model"] = part.glue.fit(part.module, part.watch, partial(_ours, part, say))
    if part := by_name.get("jump-forward"):
        chosen["jump_forward"] = partial(part.glue.LabJumpForward, part.module, part.watch)
    if part := by_name.get("vision tower"):
        chosen["vision_tower"] = part.glue.fit(part.module, part.watch, partial(_ours, part, say))
    return EngineParts(**chosen, fit=partial(_fit, by_name, say), on_start=partial(_on_start, by_name, pools))


def _ours(part: Part, say: Any, why: str) -> str:
    """Say that a lab cannot serve here, and of what it knows nothing."""
    text = f"ours (lab {part.plug.lab} knows nothing of {why})"
    say(f"{part.plug.part:16} {text}")
    return text


def _fit(by_name: dict[str, Part], say: Any, parts: EngineParts, config: Any) -> EngineParts:
    """Ours again where a lab knows nothing of a setting."""
    out = {name: _ours(part, say, why) for name, part in by_name.items() if (why := part.plug.unlike(config))}
    fields = {by_name[name].plug.field for name in out}
    return replace(parts, **{f: getattr(EngineParts(), f) for f in fields}, origins={**parts.origins, **out})


def _make_pool(part: Part, pools: list[GuardedPool], num_blocks: int, enable_caching: bool = True) -> GuardedPool:
    """The learner's pool; our pool around her queue where only that is written."""
    if part.plug.part == "block pool":
        pool = part.watch.call(part.module.BlockPool, num_blocks, enable_caching)
    else:
        pool = BlockPool(num_blocks, enable_caching)
        pool.free_block_queue = part.watch.call(part.module.FreeKVCacheBlockQueue, pool.blocks[1:])
    pools.append(GuardedPool(pool, part.watch))
    return pools[-1]


def _make_scheduler(part: Part, say: Any, config: Any, manager: Any, max_model_len: int, **held: Any) -> Any:
    rooms = (room for room in ("encoder", "connector", "lora") if held.get(room) is not None)
    if setting := part.plug.unlike(config) or next((f"the scheduler's room {room!r}" for room in rooms), ""):
        _ours(part, say, setting)  # whoever calls without an engine has not asked `_fit`
        return make_scheduler(config, manager, max_model_len, **held)
    return part.glue.LabScheduler(part.module.schedule_step, part.watch, config, manager, max_model_len, **held)


def _make_attention(part: Part, say: Any, kv_cache: Any, num_heads: int, sliding_windows: Sequence[int | None]) -> Any:
    from course.plugs.model import LabAttention
    from mini_vllm.attention.backends.registry import get_attention_backend
    from mini_vllm.attention.quantized_kv_cache import QuantizedKVCache

    windows = any(window is not None for window in sliding_windows)
    if windows or isinstance(kv_cache, QuantizedKVCache):
        _ours(part, say, "sliding windows" if windows else "a KV cache in eight bits")
        return get_attention_backend()(kv_cache, num_heads, sliding_windows)
    return LabAttention(part.module, part.watch, kv_cache, num_heads, sliding_windows)


def _on_start(by_name: dict[str, Part], pools: list[GuardedPool], core: Any) -> None:
    """Tell the pool's guard whose the blocks are, and let the KV oracle name the labs."""
    manager, oracle = core.kv_cache_manager, core.model_runner.kv_oracle
    if pools and manager.block_pool is pools[-1]:
        tables, ids_of = manager.req_to_blocks, manager.get_block_ids
        pools[-1].owner_of = lambda id_: next((i for i in tables if any(id_ in ids for ids in ids_of(i))), None)
    if part := by_name.get("proposer"):
        part.glue.on_start(part.module, part.watch, core)
    names = ("block pool", "free queue", "block hash", "scheduler step")
    suspects = [p for name in names if (p := by_name.get(name)) and not p.plug.unlike(core.config)]
    if oracle is not None and suspects:
        check = oracle.on_step

        def on_step(rows: Any) -> None:
            try:
                check(rows)
            except RuntimeError as error:
                labs = " or ".join(f"lab {part.plug.lab} ({part.plug.part})" for part in suspects)
                raise PartError(f"{labs}: the KV oracle says: {error}", suspects[0].plug.part) from None

        oracle.on_step = on_step
