"""An adapter: the patches of all projections, read from a folder. Upstream twin: `vllm/lora/lora_model.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.lora.lora_weights import LoRALayerWeights
from mini_vllm.lora.peft_helper import CONFIG_NAME, PEFTHelper
from mini_vllm.lora.utils import parse_fine_tuned_lora_name
from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import shown

TENSORS_NAME = "adapter_model.safetensors"
Shapes = Mapping[str, tuple[int, int]]
"""Name of a projection in the base checkpoint -> (outputs, inputs) of the whole weight."""


class LoRAModel:
    """Args:
        lora_model_id: its number. rank: r. loras: by the projection's name in the base checkpoint.

    Upstream: upstream/vllm/lora/lora_model.py:60 — `LoRAModel`.
    """

    def __init__(self, lora_model_id: int, rank: int, loras: dict[str, LoRALayerWeights]) -> None:
        self.id, self.rank, self.loras = lora_model_id, rank, loras

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(lora.nbytes for lora in self.loras.values())

    def get_lora(self, module_name: str) -> LoRALayerWeights | None:
        """The patch of one projection; None: it is left as it is."""
        return self.loras.get(module_name)

    @classmethod
    def from_local_checkpoint(
        cls, lora_dir: str | Path, expected: Shapes, peft_helper: PEFTHelper, lora_model_id: int, dtype: Any,
        others: Collection[str] = (), module_name: Callable[[str], str] = str,
    ) -> LoRAModel:  # fmt: skip
        """Read an adapter; all names and shapes are looked at before any weight is.

        Args:
            expected: the projections that have buffers.
            dtype: that the factors get.
            others: the projections and embeddings that have none; an adapter must not want to change them.
            module_name: a name in the file -> the base checkpoint's.

        Raises:
            FileNotFoundError: the folder has no weights. ValueError: names what does not fit.

        Upstream: upstream/vllm/lora/lora_model.py:167 — `LoRAModel.from_local_checkpoint`.
        """
        path = Path(lora_dir) / TENSORS_NAME
        if not path.is_file():
            pickled = any((path.parent / f"adapter_model.{end}").is_file() for end in ("bin", "pt"))
            hint = "; pickled ones are not read: save it with `safe_serialization=True`" if pickled else ""
            raise FileNotFoundError(f"{path} is not there: an adapter's weights are expected in {TENSORS_NAME}{hint}")
        file = SafetensorsFile(path)
        try:
            names = _check(file, expected, others, peft_helper, module_name)
            loras = {
                module: LoRALayerWeights.from_config(
                    module, peft_helper, *(_factor(file, name, dtype) for name in pair)
                ).optimize()
                for module, pair in names.items()
            }
        finally:
            file.close()
        return cls(lora_model_id, peft_helper.r, loras)


def _factor(file: SafetensorsFile, name: str, dtype: Any) -> Array:
    """One tensor of finite numbers. Upstream serves NaN and infinities too."""
    with np.errstate(over="ignore"):
        factor = file.read(name).astype(dtype, copy=False)
    if not np.isfinite(factor).all():
        raise ValueError(f"{file.path}: tensor {name!r} holds a value that is not finite as {factor.dtype}")
    return factor


def _not_served(modules: list[str]) -> str:
    """A sentence about what upstream serves and this engine does not.

    Upstream: upstream/vllm/lora/layers/fused_moe.py:27 — `FusedMoEWithLoRA`; vocal_parallel_embedding.py and
    logits_processor.py beside it.
    """
    if any(".experts" in module for module in modules):
        return ": adapters of experts are not served, whose tokens are sorted by expert before any product"
    if any(module.rpartition(".")[2] in ("embed_tokens", "wte", "lm_head") for module in modules):
        return ": adapters of embeddings and output matrices are not served, which tie and share the vocabulary here"
    return ""


def _check(
    file: SafetensorsFile,
    expected: Shapes,
    others: Collection[str],
    peft_helper: PEFTHelper,
    module_name: Callable[[str], str],
) -> dict[str, tuple[str, str]]:
    """Module -> the names of its two tensors; they are the modules that the adapter says it changes, each of them."""
    found: dict[str, dict[bool, str]] = {}
    in_file: dict[str, str] = {}
    for name in file.tensors:
        try:
            own, is_lora_a = parse_fine_tuned_lora_name(name)
        except ValueError as error:
            raise ValueError(f"{file.path}: {error}") from None
        in_file[module := module_name(own)] = own
        if is_lora_a in (pair := found.setdefault(module, {})):
            raise ValueError(f"{file.path}: {pair[is_lora_a]!r} and {name!r} are one tensor under two names")
        pair[is_lora_a] = name
    unexpected = [module for module in found if module not in expected]
    if unexpected:
        kinds = sorted({module.rpartition(".")[2] for module in expected})
        raise ValueError(
            f"{file.path}: target modules must be among {kinds}, got {shown(unexpected)}{_not_served(unexpected)}"
        )
    rank = peft_helper.r
    for module, pair in found.items():
        outputs, inputs = expected[module]
        for is_lora_a, shape in ((True, (rank, inputs)), (False, (outputs, rank))):
            if is_lora_a not in pair:
                raise ValueError(f"{file.path}: {module} has no lora_{'A' if is_lora_a else 'B'}.weight")
            if file.tensors[pair[is_lora_a]].shape != shape:
                got = file.tensors[pair[is_lora_a]].shape
                raise ValueError(f"{file.path}: {pair[is_lora_a]} must have shape {shape}, got {got}")
    _check_targets(file, in_file, {*expected, *others}, peft_helper)
    return {module: (pair[True], pair[False]) for module, pair in found.items()}


def _check_targets(
    file: SafetensorsFile, in_file: Mapping[str, str], modules: set[str], peft_helper: PEFTHelper
) -> None:
    """What `target_modules` and the fields beside it select, and what the file holds, are the same set.

    in_file: module -> its name in the file, which is the one that PEFT's patterns are about.
    Upstream passes over both differences: upstream/vllm/lora/lora_model.py:167 — `LoRAModel.from_local_checkpoint`.
    """
    found, (here, there) = set(in_file), _beginnings(in_file)
    selected = {
        module for module in modules
        if peft_helper.selects(there + module.removeprefix(here) if module.startswith(here) else module)
    }  # fmt: skip
    targets = f"target_modules {shown(peft_helper.target_modules)} of {CONFIG_NAME}"
    if lacking := sorted(selected - found):
        raise ValueError(f"{file.path}: no tensors for {shown(lacking)}, which {targets} selects{_not_served(lacking)}")
    if beyond := sorted(found - selected):
        raise ValueError(f"{file.path}: tensors for {shown(beyond)}, which {targets} does not select")
    if not found:
        kinds = sorted({module.rpartition(".")[2] for module in modules})
        raise ValueError(f"{file.path}: {targets} selects nothing, so that nothing is changed; there are {kinds}")


def _beginnings(in_file: Mapping[str, str]) -> tuple[str, str]:
    """How names begin here, and in the file: ("model.", "") where PEFT wrapped the model without its head."""
    ours, own = (name.split(".") for name in next(iter(in_file.items()), ("", "")))
    while ours and own and ours[-1] == own[-1]:
        ours.pop()
        own.pop()
    here, there = ("".join(f"{part}." for part in parts) for parts in (ours, own))
    return here, there
