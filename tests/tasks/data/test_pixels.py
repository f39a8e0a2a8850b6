"""Every mode of PIL: read as the colours that were written, within one of 255, or refused by the file's name."""

import warnings

import numpy as np
import pytest
from PIL import Image

from psnode.errors import ConfigurationError
from psnode.tasks.data import load
from psnode.tasks.data.pixels import require_readable, rgb

GREY = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
BYTES = np.random.default_rng(3).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def read(image: Image.Image) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.asarray(rgb(image, "x.png")).astype(float)


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_of_grey_keep_their_brightness(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    if ending == "pgm":
        path.write_bytes(b"P5 8 8 65535\n" + GREY.astype(">u2").tobytes())
    else:
        Image.fromarray(GREY).save(path)
    with Image.open(path) as image:
        assert np.abs(read(image) / 255 - GREY[..., None] / 65535).max() <= 1 / 255


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "<u2"), ("I;16L", "<u2"), ("I;16B", ">u2")])
def test_byte_orders(mode, kind):
    image = Image.frombytes(mode, (8, 8), GREY.astype(kind).tobytes())
    assert np.abs(read(image) / 255 - GREY[..., None] / 65535).max() <= 1 / 255


def test_modes_of_eight_bits():
    grey, alpha = BYTES[..., 0], BYTES[..., 1]
    colour = BYTES.astype(float)
    assert np.array_equal(read(Image.fromarray(BYTES)), colour)
    assert np.array_equal(read(Image.fromarray(grey)), np.stack([grey] * 3, 2))
    assert np.array_equal(read(Image.fromarray(grey > 99)), 255.0 * np.stack([grey > 99] * 3, 2))
    assert np.array_equal(read(Image.fromarray(np.dstack([grey, alpha]), "LA")), np.stack([grey] * 3, 2))
    for mode in ("RGBA", "RGBX"):
        assert np.array_equal(read(Image.frombytes(mode, (8, 8), np.dstack([BYTES, alpha]).tobytes())), colour)
    inks = np.dstack([BYTES, alpha]).astype(float)
    expected = (255 - inks[..., :3]) * (255 - inks[..., 3:]) / 255
    assert np.abs(read(Image.frombytes("CMYK", (8, 8), np.dstack([BYTES, alpha]).tobytes())) - expected).max() <= 1


def test_premultiplied_colours_are_divided_by_their_alpha():
    alpha = np.full((8, 8), 128, np.uint8)
    halved = np.round(BYTES * (128 / 255)).astype(np.uint8)
    found = read(Image.frombytes("RGBa", (8, 8), np.dstack([halved, alpha]).tobytes()))
    assert np.abs(found - np.minimum(halved * (255 / 128), 255)).max() <= 1
    found = read(Image.frombytes("La", (8, 8), np.dstack([halved[..., 0], alpha]).tobytes()))
    assert np.abs(found[..., 1] - np.minimum(halved[..., 0] * (255 / 128), 255)).max() <= 1


def test_palettes_with_transparency(tmp_path):
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 4, "P")
    palette = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]
    image.putpalette(palette)
    image.save(tmp_path / "x.png", transparency=bytes([0, 80, 160, 255]))
    with Image.open(tmp_path / "x.png") as found:
        assert np.array_equal(read(found), np.array(palette).reshape(4, 3)[np.arange(64).reshape(8, 8) % 4])


def test_colours_of_sixteen_bits(tmp_path):
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    values = np.stack([GREY, GREY[::-1], GREY.T], 2)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "x.png").write_bytes(content)
    with Image.open(tmp_path / "x.png") as found:
        assert np.abs(read(found) / 255 - values / 65535).max() <= 1 / 255


@pytest.mark.parametrize(("mode", "told"), [("F", "floating-point"), ("I", "32-bit"), ("LAB", "mode LAB")])
def test_what_means_no_colour_is_refused_by_name_before_training(tmp_path, mode, told):
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(BYTES).save(tmp_path / "train" / name / "0.png")
    Image.new(mode, (8, 8)).save(tmp_path / "train" / "b" / "1.tif")
    with pytest.raises(ConfigurationError, match=rf"b/1\.tif holds .*{told}"):
        load("imagefolder", tmp_path)


def test_every_mode_is_read_or_refused():
    for mode in Image.MODES:
        image = Image.new(mode, (2, 2))
        try:
            require_readable(image, "x.png")
        except ConfigurationError:
            assert mode in ("F", "LAB")
        else:
            assert rgb(image, "x.png").mode == "RGB"
