"""The files of a sentence-transformers checkpoint: which modules run after the model, in which order.

    modules.json                        the list: Transformer, Pooling, then Dense, LayerNorm, Normalize, Dropout
    1_Pooling/config.json               which rows count, in the spelling of today or in that of flags
    2_Dense/config.json, .safetensors   a projection and its weights; LayerNorm has the same two files
    sentence_bert_config.json           the longest text, and how it is read
    config_sentence_transformers.json   prompts, which are not put before a text here, nor upstream

Upstream twin: `get_pooling_config`, `try_get_dense_modules` and `get_sentence_transformer_tokenizer_config` of
`vllm/transformers_utils/config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.logger import warning_once
from mini_vllm.transformers_utils.file_keys import (
    COUNT,
    EMPTY,
    FLAG,
    TEXT,
    TEXTS,
    FileKeys,
    one_of,
)
from mini_vllm.utils.checks import shown
from mini_vllm.utils.json_files import load_json, load_json_object

_MODES = {
    "cls": "CLS", "mean": "MEAN", "lasttoken": "LAST", "max": "", "mean_sqrt_len_tokens": "", "weightedmean": "",
}  # fmt: skip
"""What sentence-transformers calls a way to pool -> what it is here; "": nobody serves it, upstream neither."""
_FLAGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
ACTIVATIONS = ("linear.Identity", "activation.Tanh", "activation.ReLU", "activation.GELU", "activation.Sigmoid")
_SENTENCE = one_of("sentence_embedding", None)

MODULES = FileKeys(
    "modules.json",
    used={"type": TEXT, "path": TEXT},
    fixed={"kwargs": EMPTY},
    harmless=frozenset({"idx", "name"}),
    needed=frozenset({"type", "path"}),
)
POOLING = FileKeys(
    "1_Pooling/config.json",
    used={
        "pooling_mode": TEXT | TEXTS, "embedding_dimension": COUNT, "word_embedding_dimension": COUNT,
        **dict.fromkeys(_FLAGS, FLAG),
    },
    fixed={"include_prompt": one_of(True, None)},
    because={"include_prompt": "a prompt is a part of the text here, and is pooled with it"},
)  # fmt: skip
DENSE = FileKeys(
    "2_Dense/config.json",
    used={
        "in_features": COUNT, "out_features": COUNT, "bias": FLAG,
        "activation_function": one_of(*(f"torch.nn.modules.{name}" for name in ACTIVATIONS)),
    },
    fixed={
        "module_input_name": _SENTENCE, "module_output_name": _SENTENCE, "use_residual": one_of(False, None),
    },
    needed=frozenset({"in_features", "out_features", "activation_function"}),
)  # fmt: skip
LAYER_NORM = FileKeys("LayerNorm/config.json", used={"dimension": COUNT}, needed=frozenset({"dimension"}))
NORMALIZE = FileKeys("Normalize/config.json", fixed={"module_input_name": _SENTENCE, "module_output_name": _SENTENCE})
DROPOUT = FileKeys("Dropout/config.json", harmless=frozenset({"dropout"}))
TRANSFORMER = FileKeys(
    "sentence_bert_config.json",
    used={"max_seq_length": COUNT},
    fixed={
        "do_lower_case": one_of(False, None),
        "transformer_task": one_of("feature-extraction", "sequence-classification", None),
        "module_output_name": one_of("token_embeddings", "scores", None),
        **dict.fromkeys((
            "processing_kwargs", "query_length", "document_length", "query_expansion", "model_args", "model_kwargs",
            "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs", "tokenizer_name_or_path",
        ), EMPTY),
    },
    harmless=frozenset({"modality_config", "unpad_inputs"}),  # of texts alone, or of padded batches
    because={"do_lower_case": "write a Lowercase normalizer into tokenizer.json instead"},
)  # fmt: skip
MODEL = FileKeys(
    "config_sentence_transformers.json",
    used={"default_prompt_name": TEXT},
    fixed={"truncate_dim": EMPTY},
    harmless=frozenset({"__version__", "model_type", "prompts", "similarity_fn_name"}),
    because={"truncate_dim": "ask for `dimensions` instead"},
)
_CONFIG_NAMES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True)
class Module:
    """One that runs after pooling. kind: "Dense", "LayerNorm" or "Normalize"; folder: with its weights."""

    kind: str
    folder: str
    in_features: int = 0
    out_features: int = 0
    bias: bool = True
    activation: str = "linear.Identity"


@dataclass(frozen=True)
class Modules:
    """seq_pooling_type: as in `PoolerConfig`; None: a classifier, which pools by itself. width: of the rows that are
    pooled; None: not said. projector: what follows, in order, without a Normalize at the end, which is `normalize`."""

    seq_pooling_type: str | None
    width: int | None
    projector: tuple[Module, ...]
    normalize: bool


def read_modules(folder: str | Path) -> Modules:
    """What follows the model.

    Raises:
        ValueError: a file is damaged, or names a module, a key or a value that is not served.

    Upstream: upstream/vllm/transformers_utils/config.py:844 — `get_pooling_config`, `:1174` — `try_get_dense_modules`.
    """
    file = Path(folder) / MODULES.name
    listed = load_json(file)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError(f"{file}: not a list of modules: {shown(listed)}")
    entries = [MODULES.read(each, f"{file}, entry {i}") for i, each in enumerate(listed)]
    kinds = [_kind(entry["type"], file) for entry in entries]
    _read_model_config(Path(folder))
    task = _read_transformer(Path(folder)).get("transformer_task")
    if kinds == ["Transformer"] and task == "sequence-classification":
        return Modules(None, None, (), False)
    if kinds[:2] != ["Transformer", "Pooling"] or entries[0]["path"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise ValueError(
            f"{file} must list a Transformer in the folder itself, a Pooling, and what follows, got {kinds}"
        )
    paths = [_inside(Path(folder), entry["path"], file) for entry in entries]
    pooling_type, width = _read_pooling(paths[1])
    steps = [module for kind, path in zip(kinds[2:], paths[2:], strict=True) if (module := _read(kind, path))]
    normalize = bool(steps) and steps[-1].kind == "Normalize"
    return Modules(pooling_type, width, tuple(steps[:-1] if normalize else steps), normalize)


def max_seq_length(folder: str | Path, positions: int) -> int:
    """The longest text in tokens that the checkpoint was made for, at most the model's `positions`.

    Raises ValueError where it is more than those.
    Upstream asks for `do_lower_case` in the same file, too: upstream/vllm/transformers_utils/config.py:990 —
    "for k in ("max_seq_length", "do_lower_case")".
    """
    length = _read_transformer(Path(folder)).get("max_seq_length", positions)
    if length > positions:
        raise ValueError(f"{folder}: max_seq_length must be at most the model's context of {positions}, got {length}")
    return length


def _kind(name: str, file: Path) -> str:
    """ "sentence_transformers.models.Dense" or "sentence_transformers.base.modules.dense.Dense" -> "Dense"."""
    kind = name.rpartition(".")[2]
    known = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
    if not name.startswith("sentence_transformers.") or kind not in known:
        raise ValueError(
            f"{file}: the module {name!r} is not served; allowed: sentence_transformers' {', '.join(known)}"
        )
    return kind


def _inside(folder: Path, path: str, file: Path) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ValueError(f"{file}: path must be a folder of the checkpoint, got {path!r}")
    return folder / path


def _read_pooling(folder: Path) -> tuple[str, int | None]:
    """What `seq_pooling_type` is, and the size of a row. Where no way is named, the library takes the mean."""
    file = folder / "config.json"
    found = POOLING.read_file(file)
    by_flag = [mode for flag, mode in _FLAGS.items() if found.get(flag)]
    said = found.get("pooling_mode", by_flag or ["mean"])
    modes = [said] if isinstance(said, str) else list(said)
    if "pooling_mode" in found and any(flag in found for flag in _FLAGS) and modes != by_flag:
        raise ValueError(f"{file}: pooling_mode {modes} and the flags {by_flag} disagree")
    if len(modes) != 1 or not _MODES.get(modes[0]):
        allowed = [mode for mode, served in _MODES.items() if served]
        raise ValueError(f"{file}: pooling_mode must be one of {allowed}, got {modes}; several would be concatenated")
    sizes = {found[key] for key in ("embedding_dimension", "word_embedding_dimension") if key in found}
    if len(sizes) > 1:
        raise ValueError(f"{file}: embedding_dimension and word_embedding_dimension disagree: {sorted(sizes)}")
    return _MODES[modes[0]], next(iter(sizes), None)


def _read(kind: str, folder: Path) -> Module | None:
    """A module after pooling, None for one that does nothing at inference."""
    file = folder / "config.json"
    if kind in ("Normalize", "Dropout"):
        if file.is_file():
            (NORMALIZE if kind == "Normalize" else DROPOUT).read_file(file)
        return Module(kind, str(folder)) if kind == "Normalize" else None
    if kind == "LayerNorm":
        size = LAYER_NORM.read_file(file)["dimension"]
        return Module(kind, str(folder), size, size)
    found = DENSE.read_file(file)
    activation = found.pop("activation_function").removeprefix("torch.nn.modules.")
    return Module(kind, str(folder), activation=activation, **found)


def _read_transformer(folder: Path) -> dict[str, Any]:
    """The keys of the first file there is, checked; those with a fixed value too."""
    files = [folder / name for name in _CONFIG_NAMES if (folder / name).is_file()]
    if not files:
        return {}
    file = files[0]
    raw = load_json_object(file)
    if any(load_json_object(other) != raw for other in files[1:]):
        raise ValueError(f"{folder}: {' and '.join(each.name for each in files)} disagree: keep the one that counts")
    TRANSFORMER.read(raw, str(file))
    return {key: value for key, value in raw.items() if value is not None}


def _read_model_config(folder: Path) -> None:
    """Says once that a prompt which the library would put before each text is not put there."""
    file = folder / MODEL.name
    if file.is_file() and (name := MODEL.read_file(file).get("default_prompt_name")):
        warning_once(__name__, f"{file}: the prompt {name!r} is not put before texts: put it there yourself")
