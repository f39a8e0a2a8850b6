"""Every mode of PIL is read as the written colours, within 1 of 255, or refused with the file's name."""

import warnings

import numpy as np
import pytest
from PIL import Image

from psnode.errors import ConfigurationError
from psnode.tasks.data import imagefolder, load
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


@pytest.mark.parametrize("ending", ["jpg", "tif"])
@pytest.mark.parametrize(
    ("inks", "colour"), [((0, 255, 255, 0), (255, 0, 0)), ((255, 255, 0, 0), (0, 0, 255)), ((0, 0, 0, 255), (0, 0, 0))]
)
def test_files_of_four_inks(tmp_path, ending, inks, colour):
    path = tmp_path / f"x.{ending}"
    Image.new("CMYK", (8, 8), inks).save(path, **({"quality": 100} if ending == "jpg" else {}))
    assert (ending == "tif") or b"Adobe" in path.read_bytes()  # such files store 255 - ink
    with Image.open(path) as found:
        assert found.mode == "CMYK"
        assert np.abs(read(found) - colour).max() <= 1


def test_luma_and_chroma(tmp_path):
    """Compare the colours of a YCbCr image with ITU-R BT.601 at full range, as in JPEG."""
    stored = np.full((8, 8, 3), (120, 90, 160), np.uint8)
    image = Image.frombytes("YCbCr", (8, 8), stored.tobytes())
    image.save(tmp_path / "x.tif", compression="tiff_lzw")
    with Image.open(tmp_path / "x.tif") as found:
        assert found.tag_v2[262] == 6  # luma and chroma
        for each in (found, image):
            expected = (120 + 1.402 * 32, 120 - 0.344136 * -38 - 0.714136 * 32, 120 + 1.772 * -38)
            assert np.abs(read(each) - expected).max() <= 1


def test_hue_saturation_value_and_palettes_with_alpha():
    for hue, colour in ((0, (200, 0, 0)), (85, (0, 200, 0)), (170, (0, 0, 200))):
        assert np.abs(read(Image.new("HSV", (2, 2), (hue, 255, 200))) - colour).max() <= 1
    image = Image.new("P", (2, 2), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    assert np.array_equal(read(image.convert("PA")), np.full((2, 2, 3), (40, 50, 60)))


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_pixels_are_those_stored_whatever_orientation_is_noted(tmp_path, ending):
    half = np.zeros((8, 16, 3), np.uint8)
    half[:, 8:] = 255
    noted = Image.Exif()
    noted[0x0112] = 6
    exact = {"lossless": True} if ending == "webp" else {"quality": 100}
    Image.fromarray(half).save(tmp_path / f"x.{ending}", exif=noted, **exact)
    with Image.open(tmp_path / f"x.{ending}") as found:
        assert found.getexif()[0x0112] == 6
        assert np.abs(read(found) - half).max() <= 1


@pytest.mark.parametrize(("mode", "told"), [("F", "floating-point"), ("I", "32-bit"), ("LAB", "mode LAB")])
def test_what_means_no_colour_is_refused_by_name_before_training(tmp_path, mode, told):
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.fromarray(BYTES).save(tmp_path / "train" / name / "0.png")
    for ending in sorted(imagefolder._ENDINGS):  # the format is read from a file's contents, not from its name
        path = tmp_path / "train" / "b" / f"1{ending}"
        Image.new(mode, (8, 8)).save(path, "TIFF")
        with pytest.raises(ConfigurationError, match=rf"b/1\{ending} holds .*{told}"):
            load("imagefolder", tmp_path)
        path.write_bytes(b"no image")
        with pytest.raises(ConfigurationError, match=rf"b/1\{ending} cannot be decoded"):
            load("imagefolder", tmp_path)
        path.unlink()


def test_of_many_files_some_heads_are_read_and_the_rest_is_refused_as_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(imagefolder, "_HEADS", 4)
    (tmp_path / "train" / "a").mkdir(parents=True)
    for index in range(8):
        Image.fromarray(BYTES).save(tmp_path / "train" / "a" / f"{index}.png")
    Image.new("F", (8, 8)).save(tmp_path / "train" / "a" / "1.png", "TIFF")
    data = load("imagefolder", tmp_path)
    with pytest.raises(ConfigurationError, match=r"a/1\.png holds floating-point"):
        data.batch(np.arange(8), None)


def test_every_mode_is_read_or_refused():
    for mode in Image.MODES:
        image = Image.new(mode, (2, 2))
        try:
            require_readable(image, "x.png")
        except ConfigurationError:
            assert mode in ("F", "LAB")
        else:
            assert rgb(image, "x.png").mode == "RGB"
