"""The config of Medusa's heads. Upstream twin: `vllm/transformers_utils/configs/medusa.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mini_vllm.transformers_utils.config import ConfigError
from mini_vllm.transformers_utils.config_keys import IGNORABLE, READ_BY_POOLERS
from mini_vllm.transformers_utils.config_kinds import ALWAYS_READ
from mini_vllm.transformers_utils.file_keys import FLAG, POSITIVE, FileKeys, Kind, one_of
from mini_vllm.utils.checks import is_int, shown
from mini_vllm.utils.json_files import load_json_object

_SIZE = Kind("a whole number of at least 1", lambda value: is_int(value) and 1 <= value <= 1 << 24)
_COUNTS = ("hidden_size", "vocab_size", "num_heads", "num_hidden_layers", "truncated_vocab_size")
KEYS = FileKeys(
    "config.json",
    used={
        **dict.fromkeys(_COUNTS, _SIZE), "medusa_fc_bias": FLAG, "original_lm_head": FLAG, "logit_scale": POSITIVE,
    },
    fixed={"model_type": one_of("medusa")},
    harmless=frozenset(
        (IGNORABLE | ALWAYS_READ | READ_BY_POOLERS | {
            "max_paths", "topk", "max_seq_len", "base_model_name_or_path", "version",
        }) - {"model_type", "quantization_config", "compression_config"}
    ),
    needed=frozenset({"hidden_size", "vocab_size"}),
)  # fmt: skip


@dataclass
class MedusaConfig:
    """num_heads: tokens that are guessed, a head each; num_hidden_layers: residual layers of a head.

    truncated_vocab_size: tokens that the heads can say, which `token_map` of the checkpoint lists; None: all.
    original_lm_head: one output matrix for all heads. medusa_fc_bias: layers have a bias. logit_scale: of all logits.

    Upstream: upstream/vllm/transformers_utils/configs/medusa.py:11 — `MedusaConfig`; `medusa_fc_bias`,
    `original_lm_head` and `logit_scale` are read at upstream/vllm/model_executor/models/medusa.py:28 — "medusa_fc_bias"
    and below.
    """

    hidden_size: int
    vocab_size: int
    num_heads: int = 5
    num_hidden_layers: int = 1
    truncated_vocab_size: int | None = None
    medusa_fc_bias: bool = False
    original_lm_head: bool = False
    logit_scale: float = 1.0
    architecture: str = "MedusaModel"

    def __post_init__(self) -> None:
        if self.truncated_vocab_size is None:
            self.truncated_vocab_size = self.vocab_size
        KEYS.read({each.name: getattr(self, each.name) for each in fields(self)[:-1]}, error=ConfigError)
        if self.truncated_vocab_size > self.vocab_size:
            raise ConfigError(
                f"config.json: truncated_vocab_size must be at most vocab_size={self.vocab_size}, got "
                f"{self.truncated_vocab_size}"
            )

    @classmethod
    def from_folder(cls, folder: str | Path) -> MedusaConfig:
        """Read `config.json`. A key with "num" and "heads" in its name is `num_heads`, one with "num" and "layers"
        `num_hidden_layers`.

        Raises:
            FileNotFoundError: no such file. ConfigError: names the key.

        Upstream: upstream/vllm/transformers_utils/configs/medusa.py:41 — `MedusaConfig.from_pretrained`.
        """
        file = Path(folder) / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"no config.json in {str(folder)!r}: not a checkpoint in Hugging Face layout")
        raw = load_json_object(file, ConfigError)
        if raw.get("model_type") != "medusa":
            raise ConfigError(f"{file}: model_type of Medusa's heads must be 'medusa', got {raw.get('model_type')!r}")
        given: dict[str, Any] = {}
        for key, value in raw.items():
            name = "num_heads" if "num" in key and "heads" in key else key
            name = "num_hidden_layers" if "num" in name and "layers" in name else name
            if value is not None and given.setdefault(name, value) != value:
                raise ConfigError(f"{file}: {key} = {shown(value)} and {name} = {shown(given[name])} are one number")
        return cls(**KEYS.read(given, str(file), ConfigError))
