"""Which modules of a model that takes media are its language model, and which are not. Upstream twin:
`vllm/model_executor/models/module_mapping.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MultiModelKeys:
    """Prefixes of modules.

    Upstream: upstream/vllm/model_executor/models/module_mapping.py:11 — `MultiModelKeys`.
    """

    language_model: list[str] = field(default_factory=list)
    connector: list[str] = field(default_factory=list)
    tower_model: list[str] = field(default_factory=list)

    def is_of_language_model(self, prefix: str) -> bool:
        """Whether a module is none of a tower's and none between it and the language model."""
        return not prefix.startswith(tuple(f"{each}." for each in (*self.connector, *self.tower_model)))
