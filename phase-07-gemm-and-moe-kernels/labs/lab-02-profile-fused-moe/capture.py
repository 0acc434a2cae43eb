"""Makes `captured/` anew: runs real_run.py in its two CPU arms, each in a fresh process, and writes the provenance.

    python capture.py --python .venv-vllm/bin/python --model models/pocket-moe

Maintainers run this when the pinned release moves.
"""

from pathlib import Path

from course.captures import arguments, compact, provenance_of, run, write_provenance

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
ARMS = ("grouped", "loop")


def main() -> None:
    args = arguments(__doc__ or "")
    CAPTURED.mkdir(exist_ok=True)
    commands = {}
    for arm in ARMS:
        _, result = run(args.python, HERE / "real_run.py", args.model, "--arm", arm)
        (CAPTURED / f"cpu-{arm}.json").write_text(compact(result), encoding="utf-8")
        commands[f"cpu-{arm}.json"] = f"real_run.py --model models/{Path(args.model).name} --arm {arm}"
        print(arm, "done")
    note = "the arm chooses the way through vLLM's CPU experts by two patches that real_run.py names"
    entry = provenance_of(args.python, args.model, commands, "no", environment=note)
    entry["machine"] += ", other work running beside it"
    write_provenance(CAPTURED, "cpu", entry)


if __name__ == "__main__":
    main()
