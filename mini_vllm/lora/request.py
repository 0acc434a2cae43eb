"""Which adapter a request wants. Upstream twin: `vllm/lora/request.py`."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.utils.checks import is_int, require


@dataclass(eq=False)
class LoRARequest:
    """Names an adapter.

    Two of one name are equal, and one set of cached blocks serves them; slots go by number. So a name and a number
    belong together, which nobody checks upstream; here an engine refuses a second number for a name, and the reverse.

    Attributes:
        lora_name: as it is served. lora_int_id: at least 1. lora_path: folder in PEFT's layout.
        base_model_name: for a server's list of models. load_inplace: read it again even if it is there.
        tensorizer_config_dict, is_3d_lora_weight: upstream's, for files and experts that are not served here.

    Raises:
        ValueError: names the argument, the value and what is allowed.

    Upstream: upstream/vllm/lora/request.py:8 — `LoRARequest`.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        require(isinstance(self.lora_name, str) and bool(self.lora_name), "lora_name", self.lora_name, "a name")
        ok = is_int(self.lora_int_id) and self.lora_int_id > 0
        require(ok, "lora_int_id", self.lora_int_id, "a whole number above 0 (no adapter is lora_request=None)")
        self.lora_int_id, self.lora_path = int(self.lora_int_id), str(self.lora_path)
        require(bool(self.lora_path), "lora_path", self.lora_path, "the folder of the adapter")
        require(self.tensorizer_config_dict is None, "tensorizer_config_dict", self.tensorizer_config_dict,
                "None: adapters are safetensors files here")  # fmt: skip
        require(self.is_3d_lora_weight is False, "is_3d_lora_weight", self.is_3d_lora_weight,
                "False: adapters of experts are not served")  # fmt: skip
        require(isinstance(self.load_inplace, bool), "load_inplace", self.load_inplace, "True or False")

    @property
    def adapter_id(self) -> int:
        """`lora_int_id`."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def path(self) -> str:
        """`lora_path`."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)
