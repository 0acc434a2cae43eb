"""Pictures in conversations: `LLM.chat`, the command line, the server."""

import base64
import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mini_vllm import LLM, SamplingParams
from mini_vllm.entrypoints.chat_template import ChatTemplateError
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.tests.multimodal.tiny_llava import IMAGES, ROWS, TEXTS, save_talking_llava

Image = pytest.importorskip("PIL.Image", reason="needs the extra media")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PICTURES = [Image.fromarray(pixels) for pixels in IMAGES]


def encoded(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def url_of(image):
    return "data:image/png;base64," + base64.b64encode(encoded(image)).decode()


def says(*parts):
    return [{"role": "user", "content": list(parts)}]


def pil(index, **more):
    return {"type": "image_pil", "image_pil": PICTURES[index], **more}


def url(index, **more):
    return {"type": "image_url", "image_url": {"url": url_of(PICTURES[index])}, **more}


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_talking_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(str(folder), num_blocks=200, limit_mm_per_prompt={"image": 2})


def answer(llm, messages, **settings):
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, **settings)
    return list(output.outputs[0].token_ids)


def test_every_way_to_show_a_picture_is_the_same(llm):
    prompt = {"prompt": "[user] <image>What?<image>\n", "multi_modal_data": {"image": PICTURES[1:3]}}
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert len(output.prompt_token_ids) == len("[user] What?\n") + 2 * ROWS
    expected = list(output.outputs[0].token_ids)
    for first, last in ((pil(1), pil(2)), (url(1), url(2)), (url(1), pil(2))):
        assert answer(llm, says(first, text("What?"), last)) == expected
    short = {"type": "input_image", "image_url": url_of(PICTURES[1])}
    assert answer(llm, says(short, text("What?"), {"image_url": url_of(PICTURES[2])})) == expected
    assert answer(llm, says(pil(2), text("What?"), pil(1))) != expected


def test_a_conversation_has_the_pictures_of_all_its_turns(llm):
    messages = [*says(pil(0), text("a")), {"role": "assistant", "content": "b"}, *says(text("c"), pil(3))]
    prompt = llm.render_chat(messages)
    assert prompt["prompt"] == "[user] <image>a\n[assistant] b\n[user] c<image>\n"
    assert prompt["multi_modal_data"]["image"] == [PICTURES[0], PICTURES[3]]


def test_where_a_template_takes_texts_markers_stand_before_them_or_where_the_user_puts_them(folder):
    llm = LLM(str(folder), num_blocks=100, chat_template=TEXTS)
    assert llm.render_chat(says(text("What?"), pil(0), pil(1)))["prompt"] == "[user] <image>\n<image>\nWhat?\n"
    assert llm.render_chat(says(text("This <image>?"), pil(0)))["prompt"] == "[user] This <image>?\n"
    assert llm.render_chat(says(pil(0)))["prompt"] == "[user] <image>\n"
    with pytest.raises(ChatTemplateError, match="Found more '<image>' placeholders in input prompt than actual"):
        llm.render_chat(says(text("<image> <image>"), pil(0)))
    llm = LLM(str(folder), num_blocks=100, chat_template=TEXTS, interleave_mm_strings=True)
    assert llm.render_chat(says(text("What?"), pil(0), text("This?")))["prompt"] == "[user] What?\n<image>\nThis?\n"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([pil(0), pil(1), pil(2)], r"content\[2\]: At most 2 image\(s\) may be provided in one prompt"),
        (
            [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}],
            r"content\[0\]: http: URLs are not fetched here",
        ),
        ([{"type": "image_url", "image_url": {"url": 5}}], r"image_url must be a URL, or an object with one as 'url'"),
        ([{"type": "image_pil", "image_pil": "a.png"}], "image_pil must be a picture of PIL or an array"),
        (
            [{"type": "audio_url", "audio_url": {"url": "x"}}],
            r"content\[0\]: type must be one of text, .*got 'audio_url'",
        ),
        ([text("<image>"), pil(0)], "Expected there to be 1 prompt placeholders .* found 2"),
    ],
)
def test_parts_that_cannot_be_served_are_refused_by_name(llm, parts, message):
    with pytest.raises(ValueError, match=message):
        llm.chat(says(*parts), GREEDY)


def test_a_name_goes_with_a_part_and_an_empty_part_is_left_out(llm):
    named = llm.render_chat(says(pil(0, uuid="cat"), pil(1)))
    assert named["multi_modal_uuids"] == {"image": ["cat", None]}
    expected = answer(llm, says(pil(0, uuid="cat"), text("?")))
    assert answer(llm, says({"type": "image_url", "image_url": None, "uuid": "cat"}, text("?"))) == expected
    assert "multi_modal_data" not in llm.render_chat(says({"type": "image_url", "image_url": None}, text("?")))


def test_settings_of_the_processor_go_with_a_call(llm):
    messages = says(pil(3), text("?"))
    assert answer(llm, messages, mm_processor_kwargs={"image_mean": [0.0, 0.5, 1.0]}) != answer(llm, messages)


def run(*args, stdin=None, code=0):
    result = CliRunner().invoke(app, [*map(str, args), "--kv-memory", "1MiB"], input=stdin)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_the_command_line_shows_pictures(folder, llm, tmp_path):
    for index in (0, 1):
        (tmp_path / f"{index}.png").write_bytes(encoded(PICTURES[index]))
    both = [each for index in (0, 1) for each in ("--image", tmp_path / f"{index}.png")]
    common = "--model", folder, "--max-tokens", 4, "--temperature", 0
    whole = run("generate", *common, "--prompt", "What?", *both, "--json")
    assert json.loads(whole.stdout)["token_ids"] == answer(llm, says(pil(0), pil(1), text("What?")))
    raw = run("generate", *common, "--prompt", "<image> and <image>", "--raw", *both, "--json")
    assert json.loads(raw.stdout)["num_prompt_tokens"] == len(" and ") + 2 * ROWS
    talk = run("chat", *common, *both[:2], stdin=f"a\n/image {tmp_path / '1.png'}\nb\n/image nope.png\n/stats\n")
    assert (
        "(1 picture(s) or film(s) with the next message)" in talk.output and "error: --image: image file" in talk.output
    )
    wrong = run("generate", *common, "--image", __file__, code=2)
    assert "Failed to load image: cannot identify image file" in wrong.output


def test_info_says_what_a_model_sees(folder):
    result = CliRunner().invoke(app, ["info", str(folder)], env={"COLUMNS": "200"})
    assert f"pictures of 24 × 24 pixels, {ROWS} tokens each; CLIP tower, 2 of its 3 layers, width 32" in result.output


def test_a_model_of_text_shows_no_pictures(tmp_path):
    (tmp_path / "0.png").write_bytes(encoded(PICTURES[0]))
    wrong = CliRunner().invoke(app, ["generate", "--image", str(tmp_path / "0.png"), "--model", "models/pocket"])
    assert wrong.exit_code == 2 and "the model takes text alone" in wrong.output


def test_the_server_takes_pictures_as_urls(folder, llm, tmp_path):
    from mini_vllm.tests.entrypoints.openai.servers import Server

    httpx = pytest.importorskip("httpx")
    (tmp_path / "0.png").write_bytes(encoded(PICTURES[0]))
    flags = "--num-blocks", "100", "--served-model-name", "tiny", "--limit-mm-per-prompt", '{"image": 2}'
    settings = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    with Server(str(folder), *flags, "--allowed-local-media-path", str(tmp_path)) as server:

        def ask(*parts, **more):
            body = {"model": "tiny", "messages": says(*parts), **settings, **more}
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)

        expected = answer(llm, says(pil(0), text("What?"), pil(1)))
        local = {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/0.png"}}
        for first in (url(0), local):
            found = ask(first, text("What?"), url(1)).json()
            assert found["choices"][0]["token_ids"] == expected
            assert found["usage"]["prompt_tokens"] == len("[user] What?\n") + 2 * ROWS
        other = ask(url(0), text("What?"), url(1), mm_processor_kwargs={"image_std": [0.1, 0.2, 0.3]}).json()
        assert other["choices"][0]["token_ids"] != expected
        for parts, message in (
            ([url(0)] * 3, "At most 2 image(s) may be provided in one prompt."),
            ([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}], "https: URLs are not fetched here"),
            ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "must be a subpath of `--allowed"),
            ([{"type": "image_url", "image_url": {"url": "data:;base64,aGk="}}], "Failed to load image"),
        ):
            refused = ask(*parts)
            assert refused.status_code == 400 and message in refused.json()["error"]["message"]
        assert ask(text("Still here?")).status_code == 200
        named = [
            ask({**each, "uuid": "cat"}, text("?")).json()
            for each in (url(3), {"type": "image_url", "image_url": None})
        ]
        assert named[0]["choices"][0]["token_ids"] == named[1]["choices"][0]["token_ids"]


def test_pixels_need_not_be_pillows(llm):
    numpys = {"type": "image_pil", "image_pil": np.array(PICTURES[1])}
    assert answer(llm, says(numpys, text("?"))) == answer(llm, says(pil(1), text("?")))
