"""Verbs that a phase brings: ``course/verbs.toml`` names them; their code is read when one is called."""

from collections.abc import Callable

import typer

from course.labs import COURSE, ROOT, load, tomllib

TABLE = COURSE / "verbs.toml"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _verb(name: str, file: str) -> Callable[[typer.Context], None]:
    def call(context: typer.Context) -> None:
        inner = load(ROOT / file).app
        raise typer.Exit(inner(args=context.args, prog_name=f"course {name}", standalone_mode=False) or 0)

    return call


def add_to(app: typer.Typer) -> None:
    """Adds the table's verbs; each gets its own arguments, ``--help`` among them."""
    for name, row in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        app.command(name, help=row["does"], context_settings=PASS_ON)(_verb(name, row["file"]))
