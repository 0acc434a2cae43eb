"""Lab 17-01: the engine asks, the platform answers.

Three parties. A *platform* says what a kind of hardware can do. A *registry* holds those that are known, by name, and
`resolve_platform` takes one of them for the machine at hand. `configure` is the engine: it decides how a model will
run, and all that it knows of hardware is the platform that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number. Given."""


@dataclass(frozen=True)
class Platform:
    """What a kind of hardware can do. The fields are given, `check_dtype` is yours.

    attention_backends, supported_dtypes: the favourite first, and at least one of each.
    memory_bytes: what the device has. block_size: tokens of a KV block, where nobody asks for another.
    out_of_tree: it came from a package of somebody else.
    """

    name: str
    device_type: str
    attention_backends: tuple[str, ...]
    supported_dtypes: tuple[str, ...]
    supports_graphs: bool
    memory_bytes: int
    block_size: int = 16
    out_of_tree: bool = False

    def check_dtype(self, asked: str, model_dtype: str) -> str:
        """The numbers in which a model runs here.

        "auto" is a preference: the checkpoint's own type where this platform has it, and otherwise, or where the
        checkpoint is in float32, the platform's favourite. Any other `asked` is an order: that type or an error.

        Args:
            asked: "auto" or a key of `ITEMSIZE`. model_dtype: a key of `ITEMSIZE`.

        Raises:
            ValueError: "dtype must be one of auto, bfloat16, float32 here, got 'float16'", with what this platform
                supports, in its order.
        """
        if asked in self.supported_dtypes:
            return asked
        if asked != "auto":
            allowed = ", ".join(("auto", *self.supported_dtypes))
            raise ValueError(f"dtype must be one of {allowed} here, got {asked!r}")
        if model_dtype == "float32" or model_dtype not in self.supported_dtypes:
            return self.supported_dtypes[0]
        return model_dtype


@dataclass(frozen=True)
class Model:
    """A checkpoint, as its config.json describes it. Given.

    kv_numbers: key and value numbers of a token in all layers together.
    """

    parameters: int
    kv_numbers: int
    dtype: str


@dataclass(frozen=True)
class Wishes:
    """What a user has said. "auto" and None: nothing. Given."""

    dtype: str = "auto"
    attention_backend: str | None = None
    graphs: bool | None = None
    block_size: int | None = None
    memory_share: float = 0.5


@dataclass(frozen=True)
class Settings:
    """How a model will run. Given.

    notes: a sentence for each preference that could not be met, in your words.
    """

    attention_backend: str
    dtype: str
    graphs: bool
    block_size: int
    num_blocks: int
    notes: tuple[str, ...] = ()


def predicted_verdicts() -> dict[str, str]:
    """Your predictions, before any code runs: what *real vLLM* decides on the machines of `given.MACHINES`.

    Returns:
        For each machine the name of the platform that is taken; "error" where vLLM refuses to choose; "unspecified"
        where it starts without a platform.
    """
    return {
        "a GPU": "cuda",
        "a GPU, and a build for processors": "error",
        "nothing": "unspecified",
        "a GPU and a plug-in": "acc",
        "two kinds of GPU": "error",
        "two kinds of GPU and a plug-in": "acc",
        "two plug-ins": "error",
        "two plug-ins, one device": "bcc",
        "two plug-ins, one allowed": "acc",
        "a plug-in, none allowed": "cuda",
        "a GPU, only cpu allowed": "cuda",
    }


def make_default_platforms() -> dict[str, Platform]:
    """The platforms of this tree, by name; what a caller does to the result is seen by nobody else.

    "cuda": device "cuda", attention "flash_attn" before "triton_attn", dtypes bfloat16, float16, float32, graphs,
    80 GiB, blocks of 16. "cpu": device "cpu", attention "cpu_attn", dtypes bfloat16, float32, no graphs, 16 GiB, blocks
    of 128.
    """
    cuda = Platform("cuda", "cuda", ("flash_attn", "triton_attn"), ("bfloat16", "float16", "float32"), True, 80 << 30)
    cpu = Platform("cpu", "cpu", ("cpu_attn",), ("bfloat16", "float32"), False, 16 << 30, block_size=128)
    return {"cuda": cuda, "cpu": cpu}


def register_platform(registry: dict[str, Platform], platform: Platform) -> None:
    """Add a platform, so that `resolve_platform` may take it.

    Raises:
        ValueError: "platform 'cpu' is registered already"; the registry is as it was.
    """
    if platform.name in registry:
        raise ValueError(f"platform {platform.name!r} is registered already")
    registry[platform.name] = platform


def resolve_platform(
    registry: dict[str, Platform], detected_devices: Sequence[str], override: str | None = None
) -> Platform:
    """The platform for this machine.

    One can be taken where its device is here: in `detected_devices`, which has an entry for each card, or "cpu", which
    is always here. `override` is the user's word, by name. Without it a platform from outside comes before those of
    this tree, an accelerator before the processors, and where two have equal claims nobody guesses. What is left when
    nothing else can be taken is the platform called "cpu".

    Raises:
        ValueError: "override must be one of cpu, cuda, got 'cdua'" (sorted); "override 'cuda': no device 'cuda' here".
        RuntimeError: "only one platform can be active, but got: acc, bcc" (sorted names); "no platform for this
            machine: override it, or register 'cpu'".
    """
    here = {"cpu", *detected_devices}
    if override is not None:
        if override not in registry:
            raise ValueError(f"override must be one of {', '.join(sorted(registry))}, got {override!r}")
        if registry[override].device_type not in here:
            raise ValueError(f"override {override!r}: no device {registry[override].device_type!r} here")
        return registry[override]
    active = [each for each in registry.values() if each.device_type in here]
    outside = [each for each in active if each.out_of_tree]
    accelerators = [each for each in active if not each.out_of_tree and each.device_type != "cpu"]
    for claims in (outside, accelerators):
        if len(claims) > 1:
            names = ", ".join(sorted(each.name for each in claims))
            raise RuntimeError(f"only one platform can be active, but got: {names}")
        if claims:
            return claims[0]
    if "cpu" not in registry:
        raise RuntimeError("no platform for this machine: override it, or register 'cpu'")
    return registry["cpu"]


def configure(platform: Platform, model: Model, wishes: Wishes) -> Settings:
    """How the model will run here.

    What a user has said is kept or refused, and never changed. What she left open is the platform's favourite: for
    graphs, that there are some where it has them. The decision follows from what the platform can do, whatever it is
    called.

    `num_blocks`: as many KV blocks as fit, beside the weights, in `memory_share` of the device's memory; weights, keys
    and values are all of the dtype in which the model runs. There is one note where the checkpoint's own type is not
    supported, naming both types; no other case needs one.

    Raises:
        ValueError: what `check_dtype` says; "attention_backend must be one of cpu_attn here, got 'flash_attn'"; "graphs
            must be False here, got True"; "block_size must be at least 1, got 0"; "memory_share must be above 0 and at
            most 1, got 0"; "no room for a KV block: 123 bytes are left beside the weights, a block takes 1572864",
            where the number may be negative.
    """
    dtype = platform.check_dtype(wishes.dtype, model.dtype)
    attention = platform.attention_backends[0] if wishes.attention_backend is None else wishes.attention_backend
    if attention not in platform.attention_backends:
        allowed = ", ".join(platform.attention_backends)
        raise ValueError(f"attention_backend must be one of {allowed} here, got {attention!r}")
    if wishes.graphs and not platform.supports_graphs:
        raise ValueError("graphs must be False here, got True")
    graphs = platform.supports_graphs if wishes.graphs is None else wishes.graphs
    block_size = platform.block_size if wishes.block_size is None else wishes.block_size
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if not 0 < wishes.memory_share <= 1:
        raise ValueError(f"memory_share must be above 0 and at most 1, got {wishes.memory_share}")
    left = int(platform.memory_bytes * wishes.memory_share) - model.parameters * ITEMSIZE[dtype]
    block_bytes = block_size * model.kv_numbers * ITEMSIZE[dtype]
    if left < block_bytes:
        raise ValueError(
            f"no room for a KV block: {left} bytes are left beside the weights, a block takes {block_bytes}"
        )
    notes = []
    if wishes.dtype == "auto" and model.dtype not in platform.supported_dtypes:
        notes.append(f"the checkpoint is in {model.dtype}, which this hardware does not have: it runs in {dtype}")
    return Settings(attention, dtype, graphs, block_size, left // block_bytes, tuple(notes))
