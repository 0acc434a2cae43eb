"""Lab 17-03: a platform that comes in a package of its own, and the code that finds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from mini_vllm import Platform, Worker

GROUP = "mini_vllm.platform_plugins"
MEMORY = 256 << 20
"""Bytes of the Ref64's memory."""
logger = logging.getLogger("lab.platforms")
Register = Callable[[], "str | None"]
"""What an entry point of a platform names: gives "package.module.Class", or None where the device is not there."""


class PluginError(RuntimeError):
    """Who starts the engine has to choose or to repair something; the text says what."""


def predicted_verdicts() -> dict[str, str]:
    """What the pinned vLLM does, on a machine where its own platform "cpu" is the only built-in one that is active.

    For each of the six cases of the README one of "plugin" (its class is taken), "built-in", "error" (it goes up to
    whoever starts the engine) or "None" (no platform at all: the answer is None).
    """
    return {
        "one is not there": "built-in",
        "one raises": "built-in",
        "two are there": "error",
        "one called cpu is there": "plugin",
        "one called cpu is not there": "None",
        "one called cpu raises": "error",
    }


def decisions() -> dict[str, str]:
    """What you decided, and why: the tests hold `discover` to it.

    Returns:
        "broken": what happens where the allow list names one plug-in alone, and that one cannot be imported: "go on"
        (it is logged and left out, as any other), or "refuse" (`PluginError`).
        "unknown": a name in the allow list that no plug-in has: "warn" (it is logged), or "refuse" (`PluginError`);
        either with the names that there are.
        "why": a sentence or two.
    """
    return {
        "broken": "go on",
        "unknown": "warn",
        "why": "The list says who may run, not who must: one list serves machines with and without the chip. Whoever "
        "cannot do without the chip says device=, and that is refused where the platform is not there.",
    }


def discover(group: str = GROUP, allow: str | None = None) -> dict[str, Register]:
    """The functions that the entry points of a group name, by the names of the entry points; none is called.

    Args:
        allow: names with commas between them; blanks around a name do not belong to it. Only these are loaded. None:
            all. Nothing between the commas: none.

    What is not allowed is not even imported. What cannot be imported, whatever `Exception` comes of it, is left out,
    and logged as a warning or worse with its name, its value ("package:function") and the error; see `decisions`, for
    a name that nobody has too.
    """
    there = entry_points(group=group)
    names = None if allow is None else [name.strip() for name in allow.split(",") if name.strip()]
    found: dict[str, Register] = {}
    for point in there:
        if names is not None and point.name not in names:
            continue
        try:
            found[point.name] = point.load()
        except Exception as error:
            logger.warning("plugin %r (%s) cannot be imported: %r", point.name, point.value, error)
    for name in names or ():
        if name not in there.names:
            logger.warning("no plugin is called %r; there are: %s", name, ", ".join(sorted(there.names)) or "none")
    return found


def resolve(builtin: Mapping[str, Register], plugins: Mapping[str, Register]) -> str:
    """The name of the class of the platform to be used.

    A plug-in whose device is there comes before what is built in. Nobody is asked twice: a device may be opened by
    it. Who raises an `Exception` is logged as a warning or worse, with name and error, and its device is absent.

    Raises:
        PluginError: "plugin 'cpu' has the name of a built-in platform" (nobody has been asked then);
            "only one plugin platform can be active, but acc, bcc are; set MINI_VLLM_PLUGINS to one of them";
            "only one built-in platform can be active, but cuda, rocm are";
            "plugin 'acc' must return the name of a class or None, got 3" (of a built-in "platform 'acc' …");
            "no platform is active; asked: acc, cpu", plug-ins first.
    """
    for name in plugins:
        if name in builtin:
            raise PluginError(f"plugin {name!r} has the name of a built-in platform")
    active = _active(plugins, "plugin")
    if len(active) > 1:
        raise PluginError(
            f"only one plugin platform can be active, but {', '.join(active)} are; set MINI_VLLM_PLUGINS to one of them"
        )
    if not active:
        active = _active(builtin, "platform")
    if len(active) > 1:
        raise PluginError(f"only one built-in platform can be active, but {', '.join(active)} are")
    if not active:
        raise PluginError(f"no platform is active; asked: {', '.join([*plugins, *builtin])}")
    (qualname,) = active.values()
    return qualname


def _active(asked: Mapping[str, Register], what: str) -> dict[str, str]:
    """Name -> class of those whose device is there. Each is asked once."""
    found = {}
    for name, register in asked.items():
        try:
            answer = register()
        except Exception as error:
            logger.warning("%s %r failed, its device counts as absent: %r", what, name, error)
            continue
        if answer is None:
            continue
        if not isinstance(answer, str) or not answer:
            raise PluginError(f"{what} {name!r} must return the name of a class or None, got {answer!r}")
        found[name] = answer
    return found


def register() -> str | None:
    """What the entry point `ref64` names: the chip is on every machine, so it always gives `Ref64Platform`'s name."""
    return f"{__name__}.Ref64Platform"


class Ref64Device:
    """A chip that computes in float64 and has a memory of its own. What crosses to it and back is counted.

    Attributes:
        h2d, d2h: bytes that crossed to the device and back, in the numbers in which they crossed.
        live, peak: bytes on the device now, and at most so far.
    """

    def __init__(self) -> None:
        self.h2d = self.d2h = self.live = self.peak = 0
        self._held: dict[int, np.ndarray] = {}

    def to_device(self, array: np.ndarray) -> np.ndarray:
        """A copy on the device: float64 of any floats, and whole numbers as they are. Shape as before."""
        kind = np.float64 if np.issubdtype(array.dtype, np.floating) else array.dtype
        copy = np.array(array, kind)
        self._held[id(copy)] = copy
        self.h2d += array.nbytes
        self.live += copy.nbytes
        self.peak = max(self.peak, self.live)
        return copy

    def to_host(self, array: np.ndarray, dtype: Any) -> np.ndarray:
        """A copy on the host, in the numbers `dtype`, in which it crosses. What is on the device stays there."""
        copy = np.array(array, dtype)
        self.d2h += copy.nbytes
        return copy

    def free(self, array: np.ndarray) -> None:
        """Give the memory of what `to_device` returned back.

        Raises:
            ValueError: "free: this array is not on the device", where it never was or is no more.
        """
        if self._held.pop(id(array), None) is None:
            raise ValueError("free: this array is not on the device")
        self.live -= array.nbytes


def replace_arrays(model: Any, replace: Callable[[np.ndarray], np.ndarray]) -> None:
    """Given: each weight of a model becomes `replace(weight)`."""
    for layer in model.context.layers:
        for name, value in list(layer.__dict__.items()):
            if isinstance(value, np.ndarray):
                layer.__dict__[name] = replace(value)


class Ref64Worker(Worker):
    """A worker whose weights lie on the device, `self.config.platform.device`."""

    def load_model(self) -> None:
        """As every worker; then the weights cross, each once."""
        super().load_model()
        replace_arrays(self.model, self.config.platform.device.to_device)

    def shutdown(self) -> None:
        """As every worker; and the device has its memory back."""
        for layer in self.model.context.layers:
            for array in layer.arrays:
                self.config.platform.device.free(array)
        super().shutdown()


class Ref64Program:
    """What the engine calls in the place of the model: tokens cross to the device, logits cross back, the rest stays.

    Args:
        model: its weights are on the device.
    """

    def __init__(self, model: Any, device: Ref64Device) -> None:
        self.model, self.device = model, device

    def forward(self, input_ids: Any, positions: np.ndarray, attn: Any, inputs_embeds: Any = None) -> np.ndarray:
        """The model's. `input_ids` and `positions` [T] cross to the device, and are freed when the pass is over; so do
        `inputs_embeds` [T, H], where they come in the place of ids, which are None then.

        Returns:
            hidden states [T, H], on the device.
        """
        there = [
            None if each is None else self.device.to_device(each) for each in (input_ids, positions, inputs_embeds)
        ]
        hidden = self.model.forward(there[0], there[1], attn, there[2])
        for each in there:
            if each is not None:
                self.device.free(each)
        return hidden

    def compute_logits(self, hidden: np.ndarray) -> np.ndarray:
        """[R, H] on the device -> logits [R, V] on the host, which cross as float32."""
        return self.device.to_host(self.model.compute_logits(hidden), np.float32)


class Ref64Platform(Platform):
    """The engine's questions, answered for the Ref64. One object a process, so one `device`: the chip."""

    device_name = "ref64"
    supported_dtypes = ("float64",)

    def __init__(self) -> None:
        self.device = Ref64Device()

    def check_and_update_config(self, config: Any) -> None:
        """What the chip cannot do is refused by name, before a byte is loaded.

        Raises:
            ValueError: "kv_cache_dtype='fp8' is not there with device='ref64'" where it is not "auto", and in the same
                words `tensor_parallel_size` above 1, any `quantization` and `enforce_eager`, which would run the model
                past `Ref64Program`.
        """
        refused = {
            "kv_cache_dtype": config.kv_cache_dtype if config.kv_cache_dtype != "auto" else None,
            "tensor_parallel_size": config.tensor_parallel_size if config.tensor_parallel_size > 1 else None,
            "quantization": config.quantization,
            "enforce_eager": config.enforce_eager or None,
        }
        for name, value in refused.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is not there with device='ref64'")

    def get_worker_cls(self) -> type[Any]:
        """`Ref64Worker`."""
        return Ref64Worker

    def get_attn_backend_cls(self, selected_backend: str | None) -> Any:
        """What was asked for; else "paged_online", which needs no room for gathered keys."""
        return selected_backend or "paged_online"

    def compiled_form(self, model: Any) -> Any:
        """`Ref64Program` of this model."""
        return Ref64Program(model, self.device)

    def get_device_total_memory(self, device_id: int = 0) -> int:
        """`MEMORY`."""
        return MEMORY

    def get_current_memory_usage(self, device_id: int = 0) -> int:
        """Bytes that lie on the device now."""
        return self.device.live
