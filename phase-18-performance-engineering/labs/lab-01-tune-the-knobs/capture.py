"""Makes `captured/` anew: runs real_run.py in a fresh process and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket

Maintainers run this when the pinned release moves.
"""

from pathlib import Path

from course.captures import arguments, compact, provenance_of, run, write_provenance

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
NEIGHBOURS = "other programs kept both cores of the machine busy meanwhile; that is why some steps took long"


def main() -> None:
    args = arguments(__doc__)
    CAPTURED.mkdir(exist_ok=True)
    _, result = run(args.python, HERE / "real_run.py", args.model)
    (CAPTURED / "steps.json").write_text(compact(result), encoding="utf-8")
    commands = {"steps.json": f"real_run.py --model models/{Path(args.model).name}"}
    entry = provenance_of(args.python, args.model, commands, "no", note=NEIGHBOURS)
    write_provenance(CAPTURED, "cpu", entry)


if __name__ == "__main__":
    main()
