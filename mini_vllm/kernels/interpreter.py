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
        _keep_kernels_inside()
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


def _keep_kernels_inside() -> None:
    """In the interpreter a kernel's pointers are addresses of this process, and its globals get the interpreter's own.
    Here it reads and writes the tensors of its launch alone, and finds its own globals and one name more."""
    from triton.runtime import interpreter

    if hasattr(interpreter, "spans_of_the_course"):
        return
    spans: list[tuple[int, int]] = []
    interpreter.spans_of_the_course = spans
    start = interpreter.GridExecutor._init_args_hst

    def started(self: Any, args: Any, kwargs: Any) -> Any:
        import torch

        found = start(self, args, kwargs)
        given = [getattr(x, "base", x) for x in [*found[0], *found[1].values()]]  # a descriptor's tensor
        given = [x for x in given if isinstance(x, torch.Tensor)]
        stores = [x.untyped_storage() for x in given]
        spans[:] = sorted({(store.data_ptr(), store.data_ptr() + store.nbytes()) for store in stores})
        return found

    def compiled(self: Any, tree: Any) -> Any:
        space, own = self.fn.__globals__, dict(self.kwargs)
        space.setdefault("interpreter_semantic", interpreter.interpreter_semantic)
        exec(compile(tree, self.filename, "exec"), space, own)
        return own[self.fn.__name__]

    interpreter.GridExecutor._init_args_hst = started
    interpreter.FunctionRewriter._compile_and_exec = compiled
    builder = interpreter.InterpreterBuilder
    for name, mask in (("masked_load", 1), ("masked_store", 2), ("atomic_cas", None), ("atomic_rmw", 3)):
        setattr(builder, f"create_{name}", _bounded(getattr(builder, f"create_{name}"), name, mask, spans))


def _bounded(call: Any, name: str, mask: int | None, spans: list[tuple[int, int]]) -> Any:
    """``call(builder, [op,] pointers, ...)``, which raises IndexError for an address outside of all spans; ``mask``:
    the place of its mask among the arguments."""

    def checked(self: Any, *args: Any, **more: Any) -> Any:
        import numpy as np

        ptr = args[1 if name == "atomic_rmw" else 0]
        size = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        chosen: Any = None if mask is None else args[mask]
        chosen = chosen.data if hasattr(chosen, "dtype") and not isinstance(chosen, np.ndarray) else chosen
        at = np.asarray(ptr.data)[
            ... if chosen is None else np.broadcast_to(np.asarray(chosen).astype(bool), ptr.data.shape)
        ]
        inside = np.zeros(at.shape, bool)
        for first, end in spans:
            inside |= (at >= first) & (at + size <= end)
        if not inside.all():
            raise IndexError(
                f"{name}: {(~inside).sum()} of {at.size} addresses lie outside of the tensors of this launch"
            )
        return call(self, *args, **more)

    return checked
