"""Films from files and URLs, in conversations, on the command line and over HTTP."""

import base64
import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.entrypoints.chat_template import ChatTemplateError
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.multimodal.media import video as video_module
from mini_vllm.multimodal.media.connector import MediaConnector
from mini_vllm.multimodal.media.video import VideoMediaIO
from mini_vllm.tests.multimodal.tiny_qwen2_vl import FILMS, IMAGES, save_talking_qwen2_vl

Image = pytest.importorskip("PIL.Image", reason="needs the extra media")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
GREY = [Image.fromarray(np.full((56, 56, 3), 30 * shade, np.uint8)) for shade in range(8)]


def animation(kind="WEBP", pictures=GREY, **settings):
    """Of 200 ms each, without loss: 1.6 s in all."""
    buffer, more = io.BytesIO(), {"lossless": True} if kind == "WEBP" else {}
    pictures[0].save(buffer, kind, save_all=True, append_images=pictures[1:], duration=200, **more, **settings)
    return buffer.getvalue()


def url_of(data, kind="image/webp"):
    return f"data:{kind};base64," + (base64.b64encode(data).decode() if isinstance(data, bytes) else data)


def says(*parts):
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]


def film_url(url, **more):
    return {"type": "video_url", "video_url": {"url": url}, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_talking_qwen2_vl(tmp_path_factory.mktemp("talking"))


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(str(folder), num_blocks=200, limit_mm_per_prompt={"video": 1})


def answer(llm, messages, **settings):
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False, **settings)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_frames_of_an_animation(kind):
    frames, metadata = VideoMediaIO().load_bytes(animation(kind))
    assert frames.dtype == np.uint8 and frames.shape == (8, 56, 56, 3)
    assert frames[:, 0, 0, 0].tolist() == [30 * shade for shade in range(8)]
    assert (frames == frames[:, :1, :1, :1]).all()
    assert metadata == {"total_num_frames": 8, "fps": 5.0, "duration": 1.6, "video_backend": "pillow",
                        "frames_indices": list(range(8)), "do_sample_frames": True}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "indices"),
    [
        ({"num_frames": 3}, [0, 3, 7]),
        ({"num_frames": -1, "fps": 2.5}, [0, 2, 4, 7]),  # floor(1.6 * 2.5) = 4 of them
        ({"fps": 0.1}, [0]),
        ({"video_backend": "pillow_dynamic"}, [0, 3, 5]),
        ({"video_backend": "pillow_dynamic", "max_duration": 1}, [0, 7]),
    ],
)
def test_the_frames_that_are_looked_at(settings, indices):
    frames, metadata = VideoMediaIO(settings).load_bytes(animation())
    assert metadata["frames_indices"] == [min(i, 7) for i in indices]
    assert frames[:, 0, 0, 0].tolist() == [30 * i for i in metadata["frames_indices"]]


def test_a_picture_is_a_film_of_one_frame_and_transparency_lies_on_the_ground_that_was_asked_for():
    clear = Image.new("RGBA", (28, 28), (0, 0, 0, 0))
    connector = MediaConnector(MultiModalConfig(media_io_kwargs={"image": {"rgba_background_color": [1, 2, 3]}}))
    frames, metadata = connector.fetch_video(url_of(animation("PNG", [clear]), "image/png"))
    assert frames.shape == (1, 28, 28, 3) and frames[0, 0, 0].tolist() == [1, 2, 3]
    assert metadata["total_num_frames"] == 1


def jpegs(pictures):
    found = []
    for picture in pictures:
        picture.save(buffer := io.BytesIO(), "JPEG")
        found.append(base64.b64encode(buffer.getvalue()).decode())
    return url_of(",".join(found), "video/jpeg")


def test_frames_that_a_client_has_chosen():
    connector = MediaConnector(MultiModalConfig(), {"video": {"frames_indices": [0, 5, 9], "total_num_frames": 10}})
    frames, metadata = connector.fetch_video(jpegs(GREY[:3]))
    assert np.abs(frames[:, 0, 0, 0].astype(int) - [0, 30, 60]).max() <= 1
    assert metadata == {"total_num_frames": 10, "fps": 1.0, "duration": 10.0, "video_backend": "jpeg_sequence",
                        "frames_indices": [0, 5, 9], "do_sample_frames": False}  # fmt: skip
    with pytest.raises(ValueError, match=r"frames_indices length \(3\) must match number of frames sent \(2\)"):
        connector.fetch_video(jpegs(GREY[:2]))
    two = MediaConnector(MultiModalConfig(media_io_kwargs={"video": {"num_frames": 2}}))
    assert len(two.fetch_video(jpegs(GREY))[0]) == 2
    with pytest.raises(ValueError, match="must have frames of one size"):
        two.fetch_video(jpegs([GREY[0], GREY[0].resize((28, 28))]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_frames": 0}, "num_frames must be greater than 0 or -1"),
        ({"num_frames": 2.5}, "num_frames must be a whole number, got 2.5"),
        ({"fps": float("nan")}, "fps must be a number above 0 or -1, got nan"),
        ({"fps": -1, "video_backend": "pillow_dynamic"}, "fps must be a number above 0, got -1"),
        ({"max_duration": 0}, "max_duration must be a number above 0, got 0"),
        ({"video_backend": "opencv"}, "video_backend must be one of .*'pillow_dynamic'.*, got 'opencv'"),
        ({"frame_recovery": True}, r"media_io_kwargs\['video'\] may have .*, got \['frame_recovery'\]"),
    ],
)
def test_settings_that_are_wrong_are_refused_by_name(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        VideoMediaIO(settings)


def test_what_is_no_animation_is_refused(monkeypatch):
    data = animation("GIF")
    for bad, message in (
        (b"\0\0\0\x20ftypisom", "cannot identify video file .*a film with a codec has to be sent as its frames"),
        (b"", "cannot identify video file"),
        (animation("PNG")[:300], "Failed to load video"),
    ):
        with pytest.raises(ValueError, match=message):
            VideoMediaIO().load_bytes(bad)
    for name, limit in (("MAX_DECODED_PIXELS", 8 * 56 * 56 - 1), ("MAX_FRAMES", 7)):
        with (
            monkeypatch.context() as patch,
            pytest.raises(ValueError, match="8 frames of 56 rows of 56 pixels are too"),
        ):
            patch.setattr(video_module, name, limit)
            VideoMediaIO().load_bytes(data)
    assert len(VideoMediaIO().load_bytes(data)[0]) == 8


def test_every_way_to_show_a_film_is_the_same(llm, tmp_path):
    (tmp_path / "film.webp").write_bytes(animation())
    frames = np.stack([np.asarray(picture) for picture in GREY])
    prompt = {"prompt": "[user] <|vision_start|><|video_pad|><|vision_end|>What?\n"}
    for given in (frames, GREY, tmp_path / "film.webp"):
        (output,) = llm.generate({**prompt, "multi_modal_data": {"video": given}}, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids.count(257) == 4 * 4
        expected = list(output.outputs[0].token_ids)
        assert answer(llm, says(film_url(url_of(animation())))) == expected
    assert answer(llm, says({"video_url": url_of(animation()), "uuid": "a"})) == expected
    assert answer(llm, says({"type": "video_url", "video_url": None, "uuid": "a"})) == expected
    both = says(film_url(url_of(animation())), {"type": "image_pil", "image_pil": IMAGES[0]})
    assert answer(llm, both) != expected
    for parts, message in (
        ([film_url(url_of(animation()))] * 2, r"content\[1\]: At most 1 video\(s\) may be provided in one prompt"),
        ([film_url("https://a/b.mp4")], r"content\[0\]: https: URLs are not fetched here"),
        ([{"type": "video_frames", "video_frames": [1, 2]}], r"video_frames\[0\] must be a picture of PIL or an array"),
    ):
        with pytest.raises(ChatTemplateError, match=message):
            answer(llm, says(*parts))


@pytest.mark.slow  # its fast twin is the one above
def test_the_command_line_shows_films(folder, llm, tmp_path):
    (tmp_path / "film.webp").write_bytes(animation())
    common = ["--model", folder, "--max-tokens", 4, "--temperature", 0, "--kv-memory", "1MiB"]
    shown = [*common, "--prompt", "What?", "--video", tmp_path / "film.webp", "--json"]
    result = CliRunner().invoke(app, ["generate", *map(str, shown)])
    assert json.loads(result.stdout)["token_ids"] == answer(llm, says(film_url(url_of(animation()))))
    wrong = CliRunner().invoke(app, ["generate", *map(str, common), "--video", __file__])
    assert wrong.exit_code == 2 and "cannot identify video file" in wrong.output
    wrong = CliRunner().invoke(app, ["generate", "--model", "models/pocket-vl", "--video", str(tmp_path / "film.webp")])
    assert wrong.exit_code == 2 and "the model takes image, no video" in wrong.output


@pytest.mark.slow  # its fast twins are the two above: the server renders conversations as `LLM.chat` does
def test_the_server_takes_films_as_urls(folder, llm):
    from mini_vllm.tests.entrypoints.openai.servers import Server

    httpx = pytest.importorskip("httpx")
    with Server(str(folder), "--num-blocks", "100", "--served-model-name", "tiny") as server:

        def ask(*parts, **more):
            settings = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True, **more}
            body = {"model": "tiny", "messages": says(*parts), **settings}
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)

        url = url_of(animation())
        found = ask(film_url(url)).json()
        assert found["choices"][0]["token_ids"] == answer(llm, says(film_url(url)))
        fewer = ask(film_url(url), media_io_kwargs={"video": {"num_frames": 2}}).json()
        assert found["usage"]["prompt_tokens"] - fewer["usage"]["prompt_tokens"] == 3 * 4
        refused = ask(film_url(url_of(b"ftypisom", "video/mp4")))
        assert refused.status_code == 400 and "cannot identify video file" in refused.json()["error"]["message"]


def test_a_film_of_the_tiny_model_is_not_all_of_one_shade():
    assert len({frame.mean() for frame in FILMS[0]}) == len(FILMS[0])
