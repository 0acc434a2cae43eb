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
        raise NotImplementedError("the type that this platform computes in, or an error that says what it has")


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
    raise NotImplementedError("a verdict for each machine, before any code runs")


def make_default_platforms() -> dict[str, Platform]:
    """The platforms of this tree, by name; what a caller does to the result is seen by nobody else.

    "cuda": device "cuda", attention "flash_attn" before "triton_attn", dtypes bfloat16, float16, float32, graphs,
    80 GiB, blocks of 16. "cpu": device "cpu", attention "cpu_attn", dtypes bfloat16, float32, no graphs, 16 GiB, blocks
    of 128.
    """
    raise NotImplementedError("the two platforms of this tree, by name")


def register_platform(registry: dict[str, Platform], platform: Platform) -> None:
    """Add a platform, so that `resolve_platform` may take it.

    Raises:
        ValueError: "platform 'cpu' is registered already"; the registry is as it was.
    """
    raise NotImplementedError("the registry knows this platform, or says that the name is taken")


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
    raise NotImplementedError("the one platform that this machine gets")


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
    raise NotImplementedError("the settings that follow from this platform, this model and these wishes")
