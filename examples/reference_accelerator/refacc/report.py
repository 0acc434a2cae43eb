"""The record of a device as a table, with the roofline's figures beside what was counted."""

from __future__ import annotations

from refacc import roofline
from refacc.device import KINDS, Device, Step

COLUMNS = ("weights", "attention", "weight bytes", "KV bytes")


def shape_of(device: Device) -> roofline.Shape:
    """The model that the device has a program for."""
    program, model = device.program, device.program.model
    return roofline.Shape(
        program.matrices, program.head, program.norms, model.num_layers, model.num_heads, model.num_kv_heads,
        model.head_dim,
    )  # fmt: skip


def counted(step: Step) -> tuple[int, int, int, int]:
    """Operations with weights and of attention; bytes of weights (less the rows looked up) and of the cache, read."""
    kinds = step.kinds
    return (
        kinds["projections"].flops + kinds["logits"].flops,
        kinds["attention"].flops,
        step.total("weight_bytes") - kinds["embedding"].weight_bytes,
        step.total("kv_read"),
    )


def predicted(model: roofline.Shape, step: Step) -> tuple[int, int, int, int]:
    """The same from the lengths alone."""
    return (
        roofline.weight_flops(model, step.num_tokens, step.sampled),
        roofline.attention_flops(model, step.query_lens, step.seq_lens),
        roofline.weight_bytes(model, step.sampled),
        roofline.kv_bytes(model, step.seq_lens),
    )


def report(device: Device) -> str:
    """A line for each step, the kinds of all steps together, and whether the roofline says the same."""
    if device.program is None or not device.steps:
        return f"refacc:{device.number}: no steps"
    model = shape_of(device)
    told, expected = [counted(step) for step in device.steps], [predicted(model, step) for step in device.steps]
    lines = [f"refacc:{device.number}, float64, {len(device.steps)} steps", _line("step", "tokens", *COLUMNS)]
    lines += [_line(n, step.num_tokens, *row) for n, (step, row) in enumerate(zip(device.steps, told, strict=True))]
    lines += [_line("all", sum(step.num_tokens for step in device.steps), *map(sum, zip(*told, strict=True)))]
    lines += [_line("roofline", "", *map(sum, zip(*expected, strict=True)))]
    off = [n for n, pair in enumerate(zip(told, expected, strict=True)) if pair[0] != pair[1]]
    lines += [f"counted and computed from the lengths: {f'not equal in steps {off}' if off else 'equal in every step'}"]
    return "\n".join([*lines, "", *_kinds(device), *_moved(device)])


def _kinds(device: Device) -> list[str]:
    lines = [_line("kind", "operations", "weight bytes", "KV read", "KV written")]
    for kind in KINDS:
        names = ("flops", "weight_bytes", "kv_read", "kv_written")
        lines.append(_line(kind, *(sum(getattr(step.kinds[kind], name) for step in device.steps) for name in names)))
    return lines


def _moved(device: Device) -> list[str]:
    up, down = (sum(getattr(step, name) for step in device.steps) for name in ("to_device", "to_host"))
    return [
        f"over the bus: {device.setup.to_device:,} bytes of weights once, then {up:,} in and {down:,} out",
        f"memory: {device.peak:,} of {device.total:,} bytes at most",
    ]


def _line(first: object, *cells: object) -> str:
    return f"{first!s:>11}" + "".join(f" {cell:>16,}" if isinstance(cell, int) else f" {cell!s:>16}" for cell in cells)
