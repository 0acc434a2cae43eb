"""Words of `mini-vllm serve` that are no JSON, or name nothing: one line has the flag, the value, and no word of
Python's own."""

from __future__ import annotations

import pytest

from mini_vllm.entrypoints.cli.serve import parse_serve_args

NOT_JSON = {
    "--allowed-origins": ["[", "5", '"x"', "[1]", "[" * 100_000],
    "--allowed-headers": ["x"],
    "--default-chat-template-kwargs": ["{bad", "[]"],
    "--override-generation-config": ["{bad"],
    "--compilation-config": ['{"mode": 3'],
    "--cudagraph-capture-sizes": ["[1, 2"],
    "--lora-modules": [
        '{"name":"x"}', "nothing", "5", '{"name":"x","path":5}', '{"name":"x","path":null}',
        '{"name":"x","path":"y","z":1}', '{"name":"x","path":"y","is_3d_lora_weight":"no"}',
    ],
}  # fmt: skip


@pytest.mark.parametrize("flag", NOT_JSON)
def test_what_is_no_json_of_the_flag_is_said_to_be_none(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for word in NOT_JSON[flag]:
        with pytest.raises(SystemExit):
            parse_serve_args(["toy", "--enable-lora", flag, word])
        said = capsys.readouterr().err.splitlines()[-1]
        assert flag in said and word[:60] in said and ("JSON" in said or "Invalid fields" in said)
        assert "__init__" not in said and "loads" not in said and len(said) < 400


def test_what_is_json_is_taken() -> None:
    words = [
        "--allowed-origins",
        '["a"]',
        "--default-chat-template-kwargs",
        '{"a": 1}',
        "--cudagraph-capture-sizes",
        "[1]",
    ]
    adapter = '{"name": "x", "path": "y", "base_model_name": null}'
    args = parse_serve_args(
        ["toy", "--enable-lora", "--middleware", "json.JSONDecoder", *words, "--lora-modules", adapter]
    )
    assert (args.allowed_origins, args.default_chat_template_kwargs, args.cudagraph_capture_sizes) == (
        ["a"],
        {"a": 1},
        [1],
    )
    assert (args.lora_modules[0].name, args.lora_modules[0].path, args.middleware) == ("x", "y", ["json.JSONDecoder"])


@pytest.mark.parametrize("name", ["nobodys.module.Name", "json.Nobody", "json", "..x", ""])
def test_a_middleware_that_is_not_there_is_named_with_its_flag(name: str) -> None:
    with pytest.raises(ValueError, match="--middleware must be module.name of what can be imported, got " + repr(name)):
        parse_serve_args(["toy", "--middleware", name])
