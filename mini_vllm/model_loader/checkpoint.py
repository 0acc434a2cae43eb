"""What `LLM(model=...)` names -> what is known of the model, tokenizer, folder. The workers load the weights."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.parallel import verify_with_parallel_config
from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.runner import resolve_runner
from mini_vllm.config.vllm import BYTES_PER_BLOCK, EngineConfig
from mini_vllm.layers.quantization.resolve import resolve_quantization
from mini_vllm.sample.logits_processor import load_custom_logitsprocs
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer
from mini_vllm.toy_model import ToyModel
from mini_vllm.utils.checks import shown
from mini_vllm.utils.mem_utils import format_gib, require_memory

if TYPE_CHECKING:
    from mini_vllm.distributed.parallel_state import RankGroup, TensorParallelGroup
    from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")


def resolve_model(model: Any, tokenizer: Any, config: EngineConfig) -> tuple[ResolvedModel, Any, str | None]:
    """What there is to know of the model before its weights are read, its tokenizer, and the folder that it is in.

    Args:
        model: a folder or hub name; a model object, taken as it is; None for the toy model.
        tokenizer: an object with `encode` and `decode`; a folder or hub name; None: the checkpoint's own, bytes for the
            toy model, none for another model object.

    Raises:
        TypeError: `model` is no name. ValueError: quantization of a model that is already in memory; sizes that cannot
            fit this machine.
    """
    if model is not None and not hasattr(model, "compute_logits"):
        from mini_vllm.model_loader.hub import get_checkpoint_folder

        folder = get_checkpoint_folder(model, config.revision, **_hub(config))
        resolved = ResolvedModel.from_folder(folder, config.multimodal)
        require_memory_for_weights(resolved, config)
        resolve_runner(config, resolved, folder)
        verify_with_parallel_config(config, resolved)
        _refuse_early(config, resolved, folder)
        own = None if config.skip_tokenizer_init or tokenizer is not None else _own_tokenizer(folder)
        return resolved, _resolve_tokenizer(tokenizer, config) or own, str(folder)
    if config.quantization or config.quantization_config:
        raise ValueError(f"quantization={config.quantization!r} needs a checkpoint to load, got a finished model")
    model = ToyModel(seed=config.seed) if model is None else model
    resolve_runner(config, ResolvedModel.of(model), None)
    _refuse_early(config, ResolvedModel.of(model), None)
    own = ByteTokenizer() if isinstance(model, ToyModel) and not config.skip_tokenizer_init else None
    return ResolvedModel.of(model, config.multimodal), _resolve_tokenizer(tokenizer, config) or own, None


def _refuse_early(config: EngineConfig, resolved: ResolvedModel, folder: Path | None) -> None:
    """What a core or a rank would refuse, too, when processes have been started and weights have been read."""
    from mini_vllm.executor.abstract import Executor

    Executor.get_class(config)
    config.resolve_max_model_len(*resolved.lengths)
    if config.num_blocks is not None:
        least = config.num_blocks * max(BYTES_PER_BLOCK, 2 * config.block_size)  # a byte of K and of V in each slot
        least *= 1 if config.data_parallel_backend == "ray" else config.data_parallel_size
        require_memory(f"num_blocks={shown(config.num_blocks)}", least, "ask for fewer blocks")
    elif config.gpu_memory_utilization is None:
        asked = f"kv_cache_memory_bytes={shown(config.kv_cache_memory_bytes)}"
        require_memory(asked, config.kv_cache_memory_bytes, "ask for less")
    load_custom_logitsprocs(config.model_config.logits_processors)
    config.model_config.get_diff_sampling_param(resolved, None if folder is None else str(folder))
    if folder is not None and (settings := config.quantization_config) is not None:
        assert resolved.hf_config is not None
        resolve_quantization(folder, resolved.hf_config.quantization_config, config.quantization, settings)


def require_memory_for_weights(resolved: ResolvedModel, config: EngineConfig) -> int:
    """Bytes that the weights take at least. Raises ValueError where this machine has not so many."""
    assert resolved.hf_config is not None
    least, quantized = resolved.hf_config.least_parameters, config.quantization or config.quantization_config
    needed = int(least * (0.5 if quantized else 4 if config.dtype == "float32" else 8))
    what = f"model={str(resolved.model)!r}: {shown(least)} weights"
    require_memory(what, needed, "look at the sizes in its config.json")
    return needed


def _resolve_tokenizer(tokenizer: Any, config: EngineConfig) -> Any:
    """A tokenizer object as it is, one of a folder or hub name loaded; None under `skip_tokenizer_init`.

    Raises TypeError for anything else, FileNotFoundError for a folder that is not there.
    """
    if tokenizer is None or (hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode") and not _is_name(tokenizer)):
        return None if config.skip_tokenizer_init else tokenizer
    if not _is_name(tokenizer):
        raise TypeError(
            "tokenizer must be a folder, a hub name, or an object with encode and decode, "
            f"got {type(tokenizer).__name__}: {shown(tokenizer, 60)}"
        )
    from mini_vllm.model_loader.hub import get_checkpoint_folder

    folder = get_checkpoint_folder(tokenizer, what="tokenizer", **_hub(config))
    return None if config.skip_tokenizer_init else load_tokenizer(folder)


def _hub(config: EngineConfig) -> dict[str, Any]:
    """Where the hub's files of model and tokenizer are kept, and who asks for them."""
    return {"download_dir": config.download_dir, "token": config.hf_token}


def _is_name(value: Any) -> bool:
    return isinstance(value, str | bytes | Path)


def _own_tokenizer(folder: Path) -> Any:
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return load_tokenizer(folder) if has_tokenizer else None


def load_checkpoint(
    model: str | Path,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
) -> tuple[Any, Any, str]:
    """Load what `LLM(model=...)` names.

    Args:
        model: a folder in Hugging Face layout, or a hub name such as "Qwen/Qwen2.5-0.5B-Instruct" (extra `hub`).
        dtype: of weights and KV cache, "float32" or "float64".
        progress, quantization, quantization_config: see `load_model`.

    Returns:
        The model, its tokenizer (None where the folder has none: prompts are then token ids), and the folder.
    """
    config = EngineConfig(dtype=dtype, quantization=quantization, quantization_config=quantization_config)
    resolved, tokenizer, folder = resolve_model(model, None, config)
    assert folder is not None
    return load_weights(resolved, config, progress), tokenizer, folder


def load_weights(
    resolved: ResolvedModel,
    config: EngineConfig,
    progress: Callable[[int, int], None] | None = None,
    group: TensorParallelGroup | None = None,
    pp: RankGroup | None = None,
    ep: FusedMoEParallelConfig | None = None,
) -> Any:
    """The model itself, or the part of it that a rank of `group` has, or of `pp`, whose ranks have a stage each.

    `ep`: how whole experts are dealt; by default as `config` says, to the ranks of `group`.
    `config.load_format`: "auto" and "safetensors" read the files, "dummy" draws random weights.

    Raises:
        ValueError: there is no memory left; see also `load_model`.
    """
    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.dummy_loader import load_dummy_model

    needed, quantization = require_memory_for_weights(resolved, config), config.quantization
    try:
        if config.load_format == "dummy":
            settings = quantization or config.quantization_config
            model = load_dummy_model(
                resolved.model,
                config.dtype,
                settings,
                group,
                config.enable_expert_parallel,
                config.max_model_len,
                config.convert_type,
                pp,
                ep,
            )
        else:
            model = load_model(
                resolved.model, config.dtype, progress, quantization, config.quantization_config,
                group=group, enable_expert_parallel=config.enable_expert_parallel, max_model_len=config.max_model_len,
                convert=config.convert_type, pp=pp, ep=ep,
            )  # fmt: skip
        if config.runner_type == "pooling":
            model.init_pooler(config.pooler_config)
        return model
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise ValueError(
            f"model={str(resolved.model)!r}: there is no memory left for its weights, {format_gib(needed)} at least"
        ) from None
