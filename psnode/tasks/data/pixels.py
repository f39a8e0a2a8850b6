"""Conversion of images that PIL opens to 8-bit RGB.

If an image has no definite colours, or is in a mode of PIL that psnode does not read, an error names the file. As in
torchvision's ImageFolder, alpha is dropped and the orientation in EXIF is ignored, so the pixels are in the order in which the
file stores them. For TIFF files PIL itself applies the orientation. Grey values of more than 8 bits are scaled from the depth
of the file and rounded to 8 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from PIL import Image

_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # TIFF's tags
_ALPHA = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA"}  # modes that PIL converts to RGB only through another mode
_PLAIN = frozenset(("1", "L", "P", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", *_ALPHA))
_DEEP = "convert it to 8 or 16 bits per channel"


def require_readable(image: Image.Image, path: str) -> None:
    """Raise ConfigurationError that names `path` if an image has values without a definite colour. The image is not decoded."""
    if image.mode == "F":
        raise ConfigurationError(f"{path} holds floating-point pixels, and no file records which value is white: {_DEEP}")
    if image.mode == "I" and image.format not in ("PNG", "PPM", None):
        raise ConfigurationError(f"{path} holds 32-bit pixels, and no file records which value is white: {_DEEP}")
    if image.mode not in _PLAIN and image.mode != "I" and not image.mode.startswith("I;16"):
        raise ConfigurationError(f"{path} holds pixels of PIL's mode {image.mode}, which psnode does not read: save it as RGB")


def rgb(image: Image.Image, path: str) -> Image.Image:
    """Return an image in PIL's mode RGB. Raises ConfigurationError like `require_readable`."""
    from PIL import Image

    require_readable(image, path)
    if image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if image.mode in _ALPHA:
        image = image.convert(_ALPHA[image.mode])
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return grey values of more than 8 bits scaled to bytes, with white as 255."""
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
    values = np.asarray(image).astype(np.int64)
    scaled = (values * 510 + (1 << bits) - 1) // (2 * ((1 << bits) - 1))
    found: np.ndarray[Any, np.dtype[np.uint8]] = np.clip(scaled, 0, 255).astype(np.uint8)
    return np.subtract(255, found, dtype=np.uint8) if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else found
