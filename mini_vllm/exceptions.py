"""What is wrong with a request, in a form that a server can tell a client. Upstream twin: `vllm/exceptions.py`."""

from __future__ import annotations

from typing import Any


class VLLMValidationError(ValueError):
    """A request that cannot be served as it is.

    Args:
        message: what is wrong.
        parameter: the field that it is about; a server's error body has it as `param`.
        value: what stood there.

    Upstream: upstream/vllm/exceptions.py:9 — `VLLMValidationError`.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value

    def __str__(self) -> str:
        named = {"parameter": self.parameter, "value": self.value}
        extras = ", ".join(f"{name}={what}" for name, what in named.items() if what is not None)
        return f"{super().__str__()} ({extras})" if extras else super().__str__()


class VLLMNotFoundError(Exception):
    """What a request names is not there.

    Upstream: upstream/vllm/exceptions.py:39 — `VLLMNotFoundError`.
    """


class LoRAAdapterNotFoundError(VLLMNotFoundError):
    """An adapter's folder is not there, or has not its files.

    Upstream: upstream/vllm/exceptions.py:45 — `LoRAAdapterNotFoundError`.
    """

    def __init__(self, lora_name: str, lora_path: str) -> None:
        super().__init__(f"Loading lora {lora_name} failed: No adapter found for {lora_path}")
