"""Watches a kernel in Triton's interpreter: counts what it asks for, and stops a wild address before it is followed.

    with Watch() as seen:
        out = launch(x)
    seen.dots, seen.loaded, seen.stored       products of tiles (tl.dot); bytes asked for; bytes written
    seen.given(x)                             whether a kernel was given x itself, and not a copy
    seen.first_stored, seen.options           where each store began, in bytes; each launch's num_warps and the like

An address that belongs to no number of the tensors that the kernel was given raises IndexError, with the kernel's line
in the traceback; without this check such a read may end the whole test run. On a GPU nothing is watched: `seen.counts`
is False then. Given; the same file stands in labs 04-05, 04-06, 07-05 and 11-05.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

HOOKS = ("create_masked_load", "create_masked_store", "create_dot")


class Watch:
    """A context: inside it, every launch is counted and its addresses are checked."""

    def __init__(self) -> None:
        self.dots = self.loaded = self.stored = 0
        self.counts = not torch.cuda.is_available()
        self._tensors: list[tuple[int, int, np.ndarray]] = []  # address of a storage, item size, which items are given
        self._storages: set[int] = set()
        self.first_stored: list[int] = []
        self.options: list[dict[str, Any]] = []

    def __enter__(self) -> Watch:
        if self.counts:
            from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

            self._before = [(InterpreterBuilder, name, getattr(InterpreterBuilder, name)) for name in HOOKS]
            self._before.append((GridExecutor, "__call__", GridExecutor.__call__))
            for place, name, original in self._before:
                setattr(place, name, self._hook(name, original))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self.counts:
            return
        for place, name, original in self._before:
            setattr(place, name, original)
        cause = error
        while cause is not None and type(cause).__name__ == "InterpreterError":  # one for each kernel that calls
            inner = cause.__cause__
            cause.__cause__ = cause.__context__ = None  # the raise below links the two again: no ring of causes
            cause = inner
        if cause is not None and cause is not error:  # the interpreter hides what went wrong in the kernel; show it
            cause.__context__ = None
            raise cause.with_traceback(_up_to_the_kernel(cause.__traceback__)) from None

    def given(self, x: torch.Tensor) -> bool:
        """Whether some launch got a tensor that shares x's memory; True where nothing is watched."""
        return not self.counts or x.untyped_storage().data_ptr() in self._storages

    def _hook(self, name: str, original: Any) -> Any:
        def load(builder: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
            self.loaded += self._check("load", ptrs, mask)
            return original(builder, ptrs, mask, *rest)

        def store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.stored += self._check("store", ptrs, mask)
            return original(builder, ptrs, value, mask, *rest)

        def dot(builder: Any, *args: Any) -> Any:
            self.dots += 1
            return original(builder, *args)

        def launch(grid: Any, *args: Any, **kwargs: Any) -> Any:
            names = inspect.getfullargspec(grid.fn).args
            given = [*args, *(value for key, value in kwargs.items() if key in names)]
            self._tensors = [_places(x) for x in given if isinstance(x, torch.Tensor) and x.numel()]
            self.options.append({key: value for key, value in kwargs.items() if key not in names})
            self._storages |= {base for base, _, _ in self._tensors}
            return original(grid, *args, **kwargs)

        return {"create_masked_load": load, "create_masked_store": store, "create_dot": dot}.get(name, launch)

    def _check(self, what: str, ptrs: Any, mask: Any) -> int:
        """Bytes that the mask lets through. Raises IndexError where one of them belongs to no tensor."""
        addresses, wanted = np.broadcast_arrays(ptrs.data, mask.data)
        asked = addresses[wanted.astype(bool)].astype(np.int64)
        known = np.zeros(asked.shape, bool)
        for base, size, given in self._tensors:
            item = (asked - base) // size
            inside = (item >= 0) & (item < len(given)) & ((asked - base) % size == 0)
            known |= inside & given[np.where(inside, item, 0)]
        if what == "store" and asked.size:
            self.first_stored.append(int(asked.min()))
        if not known.all():
            many = f"{(~known).sum()} of {asked.size} numbers of a {what}"
            raise IndexError(f"{many} lie outside of the tensors that the kernel was given")
        return int(asked.size) * (ptrs.get_element_ty().primitive_bitwidth // 8)


def _places(x: torch.Tensor) -> tuple[int, int, np.ndarray]:
    """Where a tensor's storage begins, and which of its items the tensor has: a slice has not all of them."""
    storage, size = x.untyped_storage(), x.element_size()
    given = torch.from_numpy(np.zeros(storage.nbytes() // size, bool))  # pages that nobody touches cost nothing
    given.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    return storage.data_ptr(), size, given.numpy()


def _up_to_the_kernel(trace: Any) -> Any:
    """The traceback without what follows the last frame of a lab's file: Triton's frames, and this file's."""
    at, last = trace, None
    while at is not None:
        file = Path(at.tb_frame.f_code.co_filename)
        if file.parent == Path(__file__).parent and file != Path(__file__):
            last = at
        at = at.tb_next
    if last is not None:
        last.tb_next = None
    return trace
