"""A class of 200 graded: the time of `course grade`, the same result twice, and what every attack gets.

    python benchmarks/grading.py                       # phase 02, two runs, three submissions alone: half an hour
    python benchmarks/grading.py --quick               # 60 submissions of two labs, nothing written

Every submission is generated from the references and a seed: restyled (what another learner would write), partly
written, with listed mistakes, copied under other names, and hostile. Goals: at most ten minutes on two cores; two runs
the same to the byte; an attack has no points; an honest submission has the points that it has alone.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.progress import Progress

from benchmarks.common import ROOT, machine, save, table
from course.contract.mistakes import apply_patch, patches, read_mistake
from course.labs import Lab, find_labs
from course.tests import submissions as made

Kinds = dict[str, tuple[int, Callable[[int], made.Files]]]
FORMS = (*("folder", "zip", "bundle") * 3, "whole folder", "whole zip", "whole bundle")
SKIPPED = ("models/", "docs/", "upstream/")


def kinds(labs: list[Lab], number: int, seed: int) -> Kinds:
    """Kind -> (how many, the files of its nth member). What is left of ``number`` is written in full."""

    def full(count: int) -> made.Files:
        return made.solutions(labs, lambda lab, text: made.restyled(text, seed * 1000 + count))

    def half(count: int) -> made.Files:
        rng = random.Random(seed * 2000 + count)
        return made.solutions(
            labs, lambda lab, text: made.restyled(made.half_written(lab, text, rng), seed * 2000 + count)
        )

    def mistaken(count: int) -> made.Files:
        rng = random.Random(seed * 3000 + count)

        def change(lab: Lab, text: str) -> str:
            found = patches(lab.folder)
            text = apply_patch(text, read_mistake(rng.choice(found)).diff) if found else text
            return made.restyled(text, seed * 3000 + count)

        return made.solutions(labs, change)

    def copy(count: int) -> made.Files:
        return made.solutions(labs, lambda lab, text: made.copied(made.restyled(text, seed * 1000 + count)))

    rest: Kinds = {
        "copied": (max(2, number // 20), copy),
        "partly written": (number // 6, half),
        "listed mistakes": (number // 6, mistaken),
        "the course's solution": (max(1, number // 50), lambda count: made.solutions(labs)),
        "endless in every test": (max(1, number // 66), lambda count: made.endless(labs)),
    }
    times = 2 if number >= 120 else 1
    rest |= {f"attack {name}": (times, partial(made.hostile, name, labs)) for name in made.BODIES}
    used = sum(count for count, _ in rest.values()) + len(made.ODD)
    return {"written in full": (number - used, full), **rest}


def write_class(target: Path, labs: list[Lab], number: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Writes the class, unless the folder is there already; yields (name, kind, form) of each submission."""
    fresh = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    for name in made.odd(target, labs) if fresh else made.ODD:
        yield name, f"attack {name}", "as it is"
    whole = _whole()
    everyone = [
        (kind, count, files) for kind, (most, files) in kinds(labs, number, seed).items() for count in range(most)
    ]
    for at, (kind, count, files) in enumerate(everyone):
        name, form = (
            f"{kind.removeprefix('attack ').replace(' ', '-').replace(chr(39), '')}-{count:02d}",
            FORMS[at % len(FORMS)],
        )
        if fresh:
            write(target, name, form, {**(whole if "whole" in form else {}), **files(count)})
        yield name, kind, form


def _whole() -> made.Files:
    """The files of this repository as a learner has them, without models and website."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    names = [n for n in listed.stdout.split("\0") if n and not n.startswith(SKIPPED) and (ROOT / n).is_file()]
    return {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).stat().st_size < 1 << 18}


def write(target: Path, name: str, form: str, files: made.Files) -> None:
    """One submission in one of ``FORMS``."""
    if form.endswith("zip"):
        made.write_zip(target / f"{name}.zip", files)
    elif form.endswith("bundle"):
        with tempfile.TemporaryDirectory() as work:
            made.write_bundle(target / f"{name}.bundle", Path(work), files)
    else:
        made.write_folder(target / name, files)


def graded(folder: Path, labs: str, jobs: int, out: Path, wrap: Sequence[str] = ()) -> dict[str, Any]:
    """One run of the command: its JSON, seconds by the clock and of processor time."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*wrap, sys.executable, "-m", "course", "grade", str(folder), "--labs", labs, "--jobs", str(jobs)]
    done = subprocess.run([*command, "--format", "json", "-o", str(out)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"course grade failed:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(cpu, 1), "text": out.read_text("utf-8")}


def judge(result: dict[str, Any], members: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """By kind: how many, lowest and highest points, what the labs' status was, and whether it is as it must be."""
    rows = {row["name"]: row for row in result["submissions"]}
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for name, kind, _ in members:
        by_kind.setdefault(kind, []).append(rows[name])
    found = []
    for kind, group in by_kind.items():
        points = [row["points"] for row in group]
        status = sorted({lab["status"] for row in group for lab in row["labs"].values()})
        found.append(
            {"kind": kind, "number": len(group), "lowest": min(points), "highest": max(points), "status": status}
        )
        found[-1]["as_it_must_be"] = _fits(kind, points)
    return found


def _fits(kind: str, points: list[float]) -> bool:
    if kind in ("attack one-missing", "partly written", "listed mistakes"):
        return all(0 < value < 100 for value in points)
    if (kind.startswith("attack ") and kind != "attack edited-tests") or kind == "endless in every test":
        return not any(points)
    return all(value == 100 for value in points)


def look_alikes(result: dict[str, Any], members: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Planted copies that are listed in some lab; pairs listed of two who did not copy; who has the solution."""
    kind = {name: kind for name, kind, _ in members}
    pairs = {tuple(sorted((p["first"], p["second"]))) for p in result["similar"]}
    planted = {tuple(sorted((n, n.replace("copied", "written-in-full")))) for n, k in kind.items() if k == "copied"}
    honest = {"written in full", "partly written", "listed mistakes"}
    wrong = [p for p in sorted(pairs - planted) if all(kind.get(name) in honest for name in p)]
    return {"planted": len(planted), "found": len(planted & pairs), "wrong": wrong, "listed": len(pairs)}


def report(document: dict[str, Any]) -> str:
    """The markdown."""
    runs, alike = document["runs"], document["look_alikes"]
    head = ["kind", "number", "points from", "to", "status of its labs", "as it must be"]
    rows = [[r["kind"], r["number"], r["lowest"], r["highest"], ", ".join(r["status"]), r["as_it_must_be"]]
            for r in document["kinds"]]  # fmt: skip
    times = [[i + 1, r["seconds"], r["cpu_seconds"], r["seconds"] / document["number"]] for i, r in enumerate(runs)]
    lines = [
        f"# Grading {document['number']} submissions of {document['labs']} ({document['jobs']} at a time)", "",
        table(["run", "seconds", "processor seconds", "seconds each"], times), "", table(head, rows), "",
        *([f"- runs the same to the byte: {document['same']}"] if len(runs) > 1 else []),
        f"- graded alone, the same as in the class: {document['alone']}",
        f"- planted copies listed: {alike['found']} of {alike['planted']}; pairs of two who did not copy: "
        f"{len(alike['wrong'])}",
    ]  # fmt: skip
    return "\n".join([*lines, *(f"- note: {text}" for text in document["missing_walls"])])


def main() -> None:
    """Generates, grades, compares, writes `results/grading.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", default="02", help="what to grade, as for `course grade`")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--alone", type=int, default=3, help="honest submissions to grade once more, each alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrap", default="", help="a command before that of the first run: `taskset -c 0,1`")
    parser.add_argument("--keep", type=Path, help="folder for the class and the results (default: a temporary one)")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.labs, args.number, args.runs, args.alone = "02-01,02-05", 60, 2, 1
    work = args.keep or Path(tempfile.mkdtemp(prefix="grading-"))
    try:
        document = measure(args, work)
    finally:
        if args.keep is None:
            shutil.rmtree(work)
    save("grading", document, report(document), keep=not args.quick)


def measure(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The whole measurement in the folder ``work``."""
    labs = [lab for name in args.labs.split(",") for lab in find_labs(name)]
    facts = machine()
    with Progress() as bar:
        task = bar.add_task("writing the class", total=args.number)
        members = []
        for member in write_class(work / "class", labs, args.number, args.seed):
            members.append(member)
            bar.advance(task)
        runs = []
        for count in bar.track(range(args.runs), description="grading it"):
            wrap = args.wrap.split() if count == 0 else []
            runs.append(graded(work / "class", args.labs, args.jobs, work / f"run-{count}.json", wrap))
            bar.console.print(
                f"run {count + 1}: {runs[-1]['seconds']} s, {runs[-1]['cpu_seconds']} s of processor time"
            )
        texts = [run.pop("text") for run in runs]
        whole = json.loads(texts[0])
        points = {row["name"]: row for row in whole["submissions"]}
        some = [
            n for k in ("written in full", "partly written", "listed mistakes") for n, kind, _ in members if kind == k
        ]
        alone = {}
        for name in bar.track(random.Random(args.seed).sample(some, args.alone), description="alone"):
            path = next(p for p in (work / "class").iterdir() if p.name in (name, f"{name}.zip", f"{name}.bundle"))
            [row] = json.loads(graded(path, args.labs, args.jobs, work / "alone.json")["text"])["submissions"]
            alone[name] = row == points[name]
    return {"machine": facts, "labs": args.labs, "number": args.number, "jobs": args.jobs, "seed": args.seed,
            "runs": runs, "same": len(set(texts)) == 1, "alone": alone, "kinds": judge(whole, members),
            "look_alikes": look_alikes(whole, members), "walls": whole["walls"],
            "missing_walls": whole["missing_walls"]}  # fmt: skip


if __name__ == "__main__":
    main()
