"""The verb ``course capacity``: a table by tensor-parallel size, and one sentence fit for a design round."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from course.labs import LabError, load, tomllib

HERE = Path(__file__).parent
CATALOGUE = HERE / "catalogue.toml"
BYTES = {"bf16": 2, "fp8": 1, "int4": 0.5}
SIZES = (1, 2, 4, 8)
COUNTS = ("layers", "hidden", "heads", "kv_heads", "head_dim")
NUMBERS = (*COUNTS, "params", "memory", "bandwidth", "flops")
COLUMNS = ("TP", "slots", "batch", "bound", "step", "gap", "TTFT", "req/s", "GPUs", "$ full", "$ served")

plans: Any = load(HERE / "plan.py")
app = typer.Typer(add_completion=False)


def known(kind: str, name: str, extra: Path | None = None) -> dict[str, Any]:
    """A row of the catalogue, or of a file of the reader's own. Raises :class:`LabError` with the names that are."""
    rows = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))[kind]
    if extra is not None:
        try:
            mine = tomllib.loads(extra.read_text(encoding="utf-8")).get(kind, {})
        except (OSError, ValueError) as error:
            raise LabError(f"--catalogue {extra}: {error}") from None
        if not isinstance(mine, dict) or not all(isinstance(row, dict) for row in mine.values()):
            raise LabError(f"--catalogue {extra}: {kind} is {mine!r}, must hold a table for each name, [{kind}.NAME]")
        rows |= mine
    found = {key: row for key, row in rows.items() if name.lower() in (key, str(row.get("name", "")).lower())}
    if not found:
        near = difflib.get_close_matches(name.lower(), rows)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise LabError(f"no {kind[:-1]} is called {name!r}{hint} Known are {', '.join(rows)}; --catalogue adds yours")
    return dict(next(iter(found.values())))


def made(kind: str, maker: Any, row: dict[str, Any]) -> Any:
    """A model or a device from its row. Raises :class:`LabError` for a key or a value that does not belong there."""
    where = f"the {kind} {row.get('name', '')!r}"
    for key, value in row.items():
        whole = key in COUNTS
        number = type(value) is int or (type(value) is float and math.isfinite(value) and not whole)
        if key in NUMBERS and not (number and value > 0):
            raise LabError(f"{where}: {key} must be a {'whole ' if whole else ''}number above 0, got {value!r}")
    try:
        return maker(**row)
    except TypeError as error:
        raise LabError(f"{where}: {str(error).partition(') ')[2]}") from None


def table(model: Any, device: Any, load_: Any, sizes: tuple[int, ...]) -> tuple[Table, list[Any]]:
    """A row for each size, refusals included, and the plans that there are."""
    promise = f"ITL ≤ {load_.itl_s * 1e3:g} ms (times in ms)"
    title = f"{model.name} on {device.name}, {load_.prompt} + {load_.output} tokens, {promise}"
    heads = [Column(name, justify="left" if name == "bound" else "right") for name in COLUMNS]
    rows = Table(*heads, title=title, box=None, padding=(0, 2, 0, 0), pad_edge=False, caption_justify="left")
    found, refused = [], []
    for tp in sizes:
        try:
            plan = plans.plan(model, device, load_, tp)
        except plans.NoPlan as error:
            refused.append(f"TP {tp}: {error}")
            continue
        found.append(plan)
        times = (f"{plan.step_ms:.1f}", f"{plan.left_out.gap_ms:.1f}", f"{plan.prefill_s * 1e3:.0f}")
        money = (f"{plan.rps:.2f}", str(plan.devices), f"{plan.usd_per_m:.3f}", f"{plan.usd_per_m_served:.3f}")
        rows.add_row(str(tp), str(plan.slots), str(plan.batch), plan.binding, *times, *money)
    rows.caption = "\n".join(refused)
    return rows, found


def sentence(best: Any, model: Any, device: Any, load_: Any) -> str:
    """What to say in the round, and beside it what the four divisions leave out."""
    left = best.left_out
    replicas = "1 replica" if best.replicas == 1 else f"{best.replicas} replicas"
    said = (
        f"{load_.rps:g} requests/s of {model.name} take {best.devices} x {device.name}: {replicas} of TP {best.tp}, "
        f"{best.busy:.0%} busy, {best.batch} requests at once, bound by {best.binding}; "
        f"${best.usd_per_m_served:.3f} for a million output tokens "
        f"at ${load_.usd_per_hour:g} a device-hour, slots sized for the {load_.reserve} context."
    )
    beside = [f"a full replica leaves {left.gap_ms:.0f} ms between tokens, others' prefill in it"]
    if left.compute_ms > best.step_ms:
        beside.append(f"the step's arithmetic takes {left.compute_ms:.0f} ms, more than its bytes")
    if best.tp > 1:
        beside.append(f"the wire takes {left.wire_ms:.1f} ms of a step")
    return f"{said}\nNot counted: {'; '.join(beside)}. A model, not a measurement: try it before you buy."


@app.command()
def capacity(
    model: Annotated[str, typer.Option(help="8b, 70b, 7b-mha, 0.6b, or one of --catalogue")] = "8b",
    device: Annotated[str, typer.Option(help="a100-80g, h100, h200, l4, or one of --catalogue")] = "h100",
    rps: Annotated[float, typer.Option(help="requests a second")] = 10.0,
    prompt: Annotated[int, typer.Option(help="tokens in")] = 1536,
    output: Annotated[int, typer.Option(help="tokens out")] = 512,
    itl: Annotated[float, typer.Option(help="largest time between two tokens, ms")] = 30.0,
    itl_of: Annotated[str, typer.Option(help="step: the step alone; gap: with others' prefill")] = "step",
    ttft: Annotated[float | None, typer.Option(help="largest time to the first token, ms, without a queue")] = None,
    usd: Annotated[float, typer.Option(help="price of a device-hour: look it up")] = 2.0,
    tp: Annotated[int, typer.Option(help="this tensor-parallel size alone; 0: 1, 2, 4 and 8")] = 0,
    weights: Annotated[str, typer.Option(help="bf16, fp8, int4")] = "bf16",
    kv: Annotated[str, typer.Option(help="bf16, fp8")] = "bf16",
    reserve: Annotated[str, typer.Option(help="whole or mean: the context for which a slot is sized")] = "whole",
    max_num_seqs: Annotated[int | None, typer.Option(help="requests that run together at most")] = None,
    memory_share: Annotated[float, typer.Option(help="share of memory for the engine")] = 0.92,
    flops_share: Annotated[float, typer.Option(help="share of peak that prefill reaches")] = 0.5,
    catalogue: Annotated[Path | None, typer.Option(help="a TOML file of yours, with tables models and devices")] = None,
) -> None:
    """How many GPUs a load takes, and what a million tokens cost: a model, in four divisions."""
    for option, value, allowed in (("--weights", weights, tuple(BYTES)), ("--kv", kv, ("bf16", "fp8"))):
        if value not in allowed:
            raise LabError(f"{option} {value!r}: choose one of {', '.join(allowed)}")
    for option, milliseconds in (("--itl", itl), ("--ttft", ttft)):
        if milliseconds is not None and not 0 < milliseconds < math.inf:
            raise LabError(f"{option} must be a finite number of ms above 0, got {milliseconds}")
    widths = {"weight_bytes": BYTES[weights], "kv_bytes": BYTES[kv]}
    shape = made("model", plans.Model, known("models", model, catalogue) | widths)
    card = made("device", plans.Device, known("devices", device, catalogue))
    more = {"memory_share": memory_share, "flops_share": flops_share, "reserve": reserve, "itl_of": itl_of}
    limits = {"ttft_s": None if ttft is None else ttft / 1e3, "max_num_seqs": max_num_seqs}
    try:
        asked = plans.Load(prompt, output, itl / 1e3, rps, usd, **more, **limits)
    except plans.NoPlan as error:
        raise LabError(str(error)) from None
    rows, found = table(shape, card, asked, (tp,) if tp else SIZES)
    out = Console(highlight=False)
    if found:
        out.print(rows, "")
        best = min(found, key=lambda plan: (plan.usd_per_m_served, plan.devices))
        out.print(sentence(best, shape, card, asked), markup=False, soft_wrap=not out.is_terminal)
    else:
        out.print(f"No plan for {rows.title}:\n{rows.caption}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
