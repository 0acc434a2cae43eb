"""What `config.json` says about rotary positions, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("original_max_position_embeddings",),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    "longrope": ("factor", "attention_factor"),
}
_LISTS: dict[str, tuple[str, ...]] = {"longrope": ("short_factor", "long_factor")}
_INERT = {"factor": 1.0}
_ALIASES = {"su": "longrope"}
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: `rope_type` is a key of `_NEEDED`; most numbers belong to some of the types.

    attention_factor: cosines and sines are multiplied by it. mscale_all_dim: of DeepSeek's yarn, 0 where unset.
    short_factor, long_factor: of longrope, one for each pair of features. partial: share of a head that is rotated.
    max_position_embeddings: of the model. max_len: the longest sequence that is served; 0: the model's longest. It
    settles once what "longrope" and "dynamic" would otherwise change in the middle of a sequence.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    mscale_all_dim: float = 0.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    partial: float = 1.0
    max_position_embeddings: int = 0
    max_len: int = 0

    @property
    def longest(self) -> int:
        """Tokens that these positions are made for.

        Upstream: upstream/vllm/config/model.py:2193 — "derived_max_model_len = rp["original_max_position_embeddings"]".
        """
        if self.rope_type == "yarn":
            return int(self.original_max_position_embeddings * self.factor)
        stretch = self.factor if self.rope_type in ("linear", "dynamic") else 1.0
        return int(self.max_position_embeddings * stretch)

    @property
    def served(self) -> int:
        """Tokens of the longest sequence that is served."""
        return self.max_len or self.longest


def parse_rope(parser: Any, error: type[ValueError]) -> RopeConfig:
    """Both spellings: `rope_parameters` (since transformers 5) or `rope_theta` with `rope_scaling`.

    Where a file has both, `rope_scaling` counts and all of `rope_parameters` is passed over, its `rope_theta` too: so
    does transformers 5, which upstream asks (upstream/vllm/transformers_utils/config.py:458 — `patch_rope_parameters`).
    Where `rope_parameters` has an entry for each kind of layer, this is that of the layers with full attention.

    Args:
        parser: `mini_vllm.transformers_utils.config_parser.ConfigParser`. error: raised, and names the key.
    """
    given = _settings(parser, error)
    if not _is_nested(given):
        return _parse(dict(given), parser.get("rope_theta", 10000.0), parser, error)
    return _parse(dict(given.get("full_attention") or {}), parser.get("rope_theta", 10000.0), parser, error)


def parse_local_rope(parser: Any, error: type[ValueError]) -> RopeConfig | None:
    """That of the layers with a window, where the architecture gives them their own: Gemma 3. None: they have not.

    Before transformers 5 they had but a base, and no scaling:
    upstream/vllm/model_executor/models/gemma3.py:172 — "rope_theta=config.rope_local_base_freq".
    """
    given = _settings(parser, error)
    if "rope_local_base_freq" not in parser.table.used:
        if _is_nested(given):
            raise error(
                f"config.json: rope_parameters with entries for {sorted(given)} are not supported for "
                f"{parser.architecture}, whose layers have the same rotary positions"
            )
        return None
    local = given.get("sliding_attention") if _is_nested(given) else None
    return _parse(dict(local or {}), parser.get("rope_local_base_freq"), parser, error)


def parse_modernbert_ropes(parser: Any, error: type[ValueError]) -> tuple[RopeConfig, RopeConfig]:
    """(of the layers with full attention, of those with a window); `rope_scaling` counts for both, as in transformers.

    Upstream: upstream/vllm/model_executor/models/modernbert.py:90 — "rope_parameters".
    """
    nested = parser.raw.get("rope_parameters") or {}
    if not isinstance(nested, dict) or not set(nested) <= set(LAYER_TYPES):
        raise error(f"config.json: rope_parameters must be an object with entries for {LAYER_TYPES}, got {nested!r}")
    scaling, found = parser.raw.get("rope_scaling") or {}, []
    for kind, key, default in (
        ("full_attention", "global_rope_theta", 160_000.0), ("sliding_attention", "local_rope_theta", 10_000.0),
    ):  # fmt: skip
        given = nested.get(kind) or {}
        if not isinstance(given, dict):
            raise error(f"config.json: rope_parameters must have an object for {kind!r}, got {given!r}")
        found.append(_parse({**given, **scaling}, parser.get(key, default), parser, error))
    return found[0], found[1]


def _settings(parser: Any, error: type[ValueError]) -> dict[str, Any]:
    """The object that counts, of which every entry is another object where it is nested."""
    given = parser.raw.get("rope_scaling") or parser.raw.get("rope_parameters") or {}
    for kind, value in given.items():
        if _is_nested(given) and not isinstance(value, dict | None):
            raise error(f"config.json: rope_parameters must have an object for {kind!r}, got {value!r}")
    if parser.raw.get("rope_scaling") and _is_nested(parser.raw.get("rope_parameters") or {}):
        raise error("config.json: rope_scaling and rope_parameters with entries for kinds of layers: give one of them")
    return given


def _is_nested(given: dict[str, Any]) -> bool:
    return bool(given) and set(given) <= set(LAYER_TYPES)


def _parse(scaling: dict[str, Any], default_theta: Any, parser: Any, error: type[ValueError]) -> RopeConfig:
    rope_type, old = scaling.pop("rope_type", None), scaling.pop("type", None)
    if rope_type is not None and old is not None and rope_type != old:
        raise error(f"config.json: rope_scaling has rope_type {rope_type!r} and type {old!r}: give one of them")
    rope_type = next((each for each in (rope_type, old) if each is not None), "default")
    theta = scaling.pop("rope_theta", None)
    theta = default_theta if theta is None else theta
    if not _is_positive(theta):
        raise error(f"config.json: rope_theta must be a number above 0, got {theta!r}")
    if not isinstance(rope_type, str) or _ALIASES.get(rope_type, rope_type) not in _NEEDED:
        allowed = ", ".join(repr(k) for k in _NEEDED)
        raise error(f"config.json: rope_scaling type {rope_type!r} is not supported; allowed: {allowed}")
    rope_type = _ALIASES.get(rope_type, rope_type)
    shares = scaling.pop("partial_rotary_factor", None), parser.raw.get("partial_rotary_factor")
    partial = next((each for each in shares if each is not None), 1.0)
    may_be_less = "partial_rotary_factor" in parser.table.used and _is_positive(partial) and partial <= 1
    if isinstance(partial, bool) or not (partial == 1.0 or may_be_less):
        raise error(f"config.json: partial_rotary_factor = {partial!r} is not supported for {parser.architecture}")
    if rope_type in ("yarn", "longrope"):
        _take_original_length(scaling, parser, error)
    values = _values(rope_type, scaling, error)
    rope = RopeConfig(float(theta), rope_type, partial=float(partial), **values)
    rope = replace(rope, max_position_embeddings=parser.positive("max_position_embeddings"))
    return replace(rope, attention_factor=_attention_factor(rope, scaling, error))


def _take_original_length(scaling: dict[str, Any], parser: Any, error: type[ValueError]) -> None:
    """The context before it was stretched may stand in `config.json` itself, too: Phi-3.

    transformers takes that one, and 4096 where it is absent; so two that differ are refused.
    """
    name = "original_max_position_embeddings"
    at_top = parser.get(name, None) if name in parser.table.used else None
    if at_top is not None and scaling.setdefault(name, at_top) not in (None, at_top):
        raise error(f"config.json: {name} is {at_top}, and {scaling[name]!r} in rope_scaling: they must be one number")
    scaling[name] = scaling.get(name) or at_top


def _values(rope_type: str, scaling: dict[str, Any], error: type[ValueError]) -> dict[str, Any]:
    """What this type knows, checked."""
    needed, optional, lists = _NEEDED[rope_type], _OPTIONAL.get(rope_type, ()), _LISTS.get(rope_type, ())
    for key in (*needed, *(key for key in optional if scaling.get(key) is not None)):
        if not _is_positive(scaling.get(key)):
            raise error(f"config.json: rope_scaling {rope_type!r} needs a {key} > 0, got {scaling.get(key)!r}")
    for key in lists:
        value = scaling.get(key)
        if not isinstance(value, list) or not value or not all(map(_is_positive, value)):
            raise error(f"config.json: rope_scaling {rope_type!r} needs a {key}: numbers > 0, got {value!r}")
    known = {*needed, *optional, *lists, *(("truncate",) if rope_type == "yarn" else ())}
    for key, value in scaling.items():
        if key not in known and value is not None and _INERT.get(key) != value:
            raise error(f"config.json: rope_scaling {rope_type!r} has unknown key {key!r} = {value!r}")
    if not isinstance(scaling.get("truncate", True), bool):
        raise error(f"config.json: rope_scaling {rope_type!r}: truncate must be true or false, got {scaling!r}")
    fields = {key: scaling[key] for key in (*needed, *optional, "truncate") if scaling.get(key) is not None}
    _check_order(rope_type, {**fields, "factor": scaling.get("factor")}, error)
    fields.pop("mscale", None)
    return {**fields, **{key: tuple(scaling[key]) for key in lists}}


def _check_order(rope_type: str, given: dict[str, Any], error: type[ValueError]) -> None:
    """Numbers that are right each by itself, and together turn a ramp round or shrink the context.

    transformers warns of them (`RotaryEmbeddingConfigMixin.validate_rope`); upstream computes what comes of it.
    """
    factor = given["factor"]
    if rope_type != "default" and factor is not None and factor < 1:
        raise error(f"config.json: rope_scaling {rope_type!r} needs a factor of at least 1, got {factor!r}")
    ramps = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}
    for low, high in [ramps[rope_type]] if rope_type in ramps else ():
        least, most = (given.get(name, getattr(RopeConfig, name)) for name in (low, high))
        if least > most:
            raise error(
                f"config.json: rope_scaling {rope_type!r} needs a {low} of at most {high} = {most}, got {least}"
            )


def _attention_factor(rope: RopeConfig, scaling: dict[str, Any], error: type[ValueError]) -> float:
    """What cosines and sines are multiplied by, so that attention over a longer context stays as sharp.

    Upstream: upstream/vllm/model_executor/layers/rotary_embedding/yarn_scaling_rope.py:40 — "self.mscale = ", and
    upstream/vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py:71 —
    "scaling_factor = math.sqrt(".
    A given `attention_factor` counts, as in transformers; upstream passes over it.
    """
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if rope.rope_type == "longrope":
        original = rope.original_max_position_embeddings
        if original < 2:
            raise error(f"config.json: original_max_position_embeddings must be at least 2, got {original}")
        factor = scaling.get("factor") or rope.max_position_embeddings / original
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if scaling.get("mscale") and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, scaling["mscale"]) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature for a context stretched by `factor`.

    Upstream: upstream/vllm/model_executor/models/deepseek_v2.py:392 — `yarn_get_mscale`.
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < float("inf")
