"""Makes `captured/` anew: asks the real classes for their sizes and writes the provenance.

    python capture.py --python .venv-vllm/bin/python

Maintainers run this when the pinned release moves.
"""

from pathlib import Path

from course.captures import arguments, compact, provenance_of, run, write_provenance

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "captured"


def main() -> None:
    args = arguments(__doc__)
    FOLDER.mkdir(exist_ok=True)
    _, result = run(args.python, HERE / "real_run.py", "none")
    (FOLDER / "cpu-sizes.json").write_text(compact(result), encoding="utf-8")
    entry = provenance_of(args.python, "none", {"cpu-sizes.json": "real_run.py --model none"}, "nothing")
    entry["model"] = "none: configuration objects only"
    write_provenance(FOLDER, "cpu", entry)


if __name__ == "__main__":
    main()
