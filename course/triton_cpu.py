"""Triton without a GPU: its interpreter, made to work with the numpy of today.

Tests of kernels begin with

    triton_or_skip()   # before the first import of a module that holds a kernel

In the interpreter use float16 and float32: there `tl.dot` on bfloat16 gives garbage."""

import os
from typing import Any


def triton_or_skip() -> bool:
    """Make `triton` usable, or skip the module that asks; whether a GPU runs the kernels (else the interpreter)."""
    import pytest

    torch = pytest.importorskip("torch", reason='needs torch: pip install -e ".[triton]"')
    on_gpu = bool(torch.cuda.is_available())
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    pytest.importorskip("triton", reason='needs triton: pip install -e ".[triton]"')
    if not on_gpu:
        _teach_the_interpreter_new_numpy()
    return on_gpu


def _teach_the_interpreter_new_numpy() -> None:
    """Triton 3.6 turns a loop bound into an int by int(array of one element), which numpy 2.4 and later refuse."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if getattr(original, "knows_new_numpy", False):
        return

    def patched(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(()))

    patched.knows_new_numpy = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patched
