"""Files and URLs: what is read, as what, and what is refused before it takes memory."""

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.multimodal.hasher import MultiModalHasher
from mini_vllm.multimodal.image import check_image, to_rgb
from mini_vllm.multimodal.media import base as base_module
from mini_vllm.multimodal.media import image as image_module
from mini_vllm.multimodal.media.connector import MediaConnector
from mini_vllm.multimodal.media.image import ImageMediaIO

Image = pytest.importorskip("PIL.Image", reason="needs the extra media")
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (9, 7, 3), dtype=np.uint8)


def encoded(image, kind="PNG", **settings):
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def read(data, **settings):
    return to_rgb(ImageMediaIO(settings).load_bytes(data))


def png_of(width, height, rows=b""):
    """A PNG that says that it has so many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG"])
def test_what_pillow_reads_is_read(kind):
    image = Image.fromarray(PIXELS)
    settings = {"lossless": True} if kind == "WEBP" else {}
    found = read(encoded(image, kind, **settings))
    assert found.shape == PIXELS.shape and found.dtype == np.uint8
    assert np.array_equal(found, PIXELS) or kind in ("GIF", "JPEG")


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "CMYK", "YCbCr"])
def test_every_mode_becomes_red_green_and_blue(mode):
    image = Image.fromarray(PIXELS).convert(mode)
    data = encoded(image, "TIFF" if mode in ("CMYK", "YCbCr") else "PNG")
    try:
        Image.open(io.BytesIO(data)).load()
    except OSError as error:  # Pillow 12.3, the last for Python 3.10
        pytest.skip(f"this Pillow cannot read what it has written: {error}")
    assert np.array_equal(read(data), np.asarray(image.convert("RGB")))


def test_transparency_of_a_file_lies_on_white_or_another_ground():
    image = Image.fromarray(np.full((2, 2, 4), [10, 20, 30, 0], np.uint8), "RGBA")
    assert read(encoded(image)).tolist() == np.full((2, 2, 3), 255).tolist()
    assert read(encoded(image), rgba_background_color=[1, 2, 3])[0, 0].tolist() == [1, 2, 3]
    assert to_rgb(image)[0, 0].tolist() == [10, 20, 30]  # one that is given is converted, as transformers does


def test_sixteen_bits_keep_their_upper_eight():
    grey = np.array([[0, 256, 0x8000, 0xFFFF]], np.uint16)
    assert read(encoded(Image.fromarray(grey)))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_of_an_animation_the_first_picture_is_read():
    frames = [Image.fromarray(np.full((4, 4, 3), value, np.uint8)) for value in (0, 255)]
    for kind in ("GIF", "PNG"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert read(data).max() == 0


def test_a_turned_picture_is_read_as_it_is_stored():
    """As upstream: neither it nor transformers looks at the orientation."""
    image, exif = Image.fromarray(PIXELS), Image.Exif()
    exif[0x0112] = 6
    assert read(encoded(image, exif=exif)).shape == PIXELS.shape


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello, I am a text", "Failed to load image: cannot identify image file"),
        (b"", "Failed to load image: cannot identify image file"),
        (encoded(Image.fromarray(PIXELS))[:-40], "Failed to load image"),
        (encoded(Image.fromarray(PIXELS), "JPEG")[:200], "Failed to load image"),
        (png_of(10_000, 10_000), "Failed to load image: the image must have from 1 to 89,478,485 pixels, got 10,000"),
        (png_of(200_000, 200_000), "Failed to load image"),
        (png_of(0, 5), "Failed to load image"),
        (png_of(9_000, 9_000)[:-20], "Failed to load image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "Failed to load image: cannot identify image file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "Failed to load image: cannot identify image file"),
    ],
    ids=["text", "nothing", "cut png", "cut jpeg", "10,000 a side", "bomb", "no width", "no rows", "eps", "svg"],
)
def test_what_is_no_picture_or_too_large_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        read(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_file_that_was_opened_and_is_damaged_is_named():
    large = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for data in (encoded(large)[:-4000], encoded(large, "JPEG")[:-1000]):
        opened = Image.open(io.BytesIO(data))
        with pytest.raises(ValueError, match="image cannot be read"):
            check_image(opened, "image")
    with pytest.raises(ValueError, match="image must have from 1 to 89,478,485 pixels, got 10,000 rows of 10,000"):
        check_image(Image.open(io.BytesIO(png_of(10_000, 10_000))), "image")


def test_a_bomb_takes_no_memory():
    data = png_of(30_000, 30_000, b"\0" * 1000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="Failed to load image"):
        read(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_a_file_that_is_too_long_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(base_module, "MAX_FILE_BYTES", 10)
    (tmp_path / "a.png").write_bytes(b"0" * 11)
    with pytest.raises(ValueError, match=r"a.png' must have at most 10 bytes"):
        ImageMediaIO().load_file(tmp_path / "a.png")
    with pytest.raises(ValueError, match="Failed to load image: 11 bytes, more than 10"):
        ImageMediaIO().load_bytes(b"0" * 11)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rgba_background_color": [1, 2]}, "rgba_background_color must be a list or tuple of 3 integers"),
        ({"rgba_background_color": [1, 2, 256]}, r"in the range \[0, 255\]"),
        ({"depth": 1}, r"media_io_kwargs\['image'\] may have rgba_background_color, got \['depth'\]"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ImageMediaIO(settings)


def test_without_pillow_a_file_is_refused_and_arrays_are_served(monkeypatch):
    monkeypatch.setattr(image_module, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs Pillow: pip install 'mini-vllm-course\[media\]'"):
        ImageMediaIO()
    check_image(PIXELS, "image")


def url_of(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_urls_of_data_and_of_files_in_one_folder(tmp_path):
    data, inside = encoded(Image.fromarray(PIXELS)), tmp_path / "inside"
    inside.mkdir()
    (inside / "a b.png").write_bytes(data)
    (tmp_path / "secret.png").write_bytes(data)
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    connector = MediaConnector(MultiModalConfig(allowed_local_media_path=str(inside)))
    for url in (url_of(data), "DATA:;base64," + base64.b64encode(data).decode(), f"file://{inside}/a%20b.png"):
        found = connector.fetch_image(url)
        assert np.array_equal(to_rgb(found), PIXELS) and found.original_bytes == data
    for name in ("link.png", "../secret.png", "%2e%2e/secret.png"):
        with pytest.raises(ValueError, match="must be a subpath of `--allowed-local-media-path"):
            connector.fetch_image(f"file://{inside}/{name}")
    (inside / "loop.png").symlink_to("loop.png")
    with pytest.raises(ValueError, match=r"cannot be read: Symlink loop|does not exist"):
        connector.fetch_image(f"file://{inside}/loop.png")
    with pytest.raises(ValueError, match=r"nope.png' does not exist"):
        connector.fetch_image(f"file://{inside}/nope.png")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/a.png", r"https: URLs are not fetched here: give the media itself as a data: URL"),
        ("http://169.254.169.254/", "http: URLs are not fetched here"),
        ("file:///etc/passwd", "Cannot load local files without `--allowed-local-media-path`"),
        ("ftp://example.org/a.png", "The URL must be either a HTTP, data or file URL"),
        ("a.png", "The URL must be either a HTTP, data or file URL"),
        ("data:image/png,abc", "Only base64 data URLs are supported for now"),
        ("data:", "Only base64 data URLs are supported for now"),
        ("data:image/png;base64,!!!", "Failed to load image: its base64 is damaged"),
        ("data:image/png;base64,aGVsbG8=", "Failed to load image: cannot identify image file"),
        ("http://[", r"the URL 'http://\[' cannot be read"),
    ],
)
def test_other_urls_are_refused_by_name(url, message):
    with pytest.raises(ValueError, match=message):
        MediaConnector(MultiModalConfig()).fetch_image(url)


def test_pictures_are_named_by_what_they_hold():
    def name(value):
        return MultiModalHasher.hash_kwargs(image=value)

    image, data = Image.fromarray(PIXELS), encoded(Image.fromarray(PIXELS))
    palette = image.convert("P")
    other = palette.copy()
    other.putpalette([*palette.getpalette()[3:], 1, 2, 3])
    names = [
        name(each) for each in (image, PIXELS, palette, other, image.convert("L"), ImageMediaIO().load_bytes(data))
    ]
    assert len(set(names)) == len(names)
    assert names[0] == name(Image.fromarray(PIXELS.copy())) and names[-1] == name(ImageMediaIO().load_bytes(data))


def test_a_transparent_picture_on_another_ground_is_another_picture():
    def name(pixels, **settings):
        return MultiModalHasher.hash_kwargs(image=ImageMediaIO(settings).load_bytes(encoded(Image.fromarray(pixels))))

    clear = np.zeros((2, 2, 4), np.uint8)
    assert name(clear) != name(clear, rgba_background_color=[0, 0, 0])
    assert name(clear) == name(clear, rgba_background_color=[255, 255, 255])
    assert name(PIXELS) == name(PIXELS, rgba_background_color=[0, 0, 0])  # nothing shines through
