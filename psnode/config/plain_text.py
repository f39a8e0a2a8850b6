"""Text for standard streams, in which plain ASCII characters replace the characters that the stream's encoding lacks.

Importing this module registers an error handler, `STANDS_IN`, in addition to Python's "strict" and "replace", and an
encoding, `ASCII`. That encoding equals "ascii" under another name, because click takes "ascii" for a mistake and writes
UTF-8 instead.
"""

from __future__ import annotations

import codecs
import unicodedata

STANDS_IN, ASCII = "psnode.plain", "psnode-ascii"
_BOX, _BLOCKS = range(0x2500, 0x2580), range(0x2580, 0x25A0)
_LEVEL, _UPRIGHT = "─━┄┅┈┉╌╍═╴╶╸╺╼╾", "│┃┆┇┊┋╎╏║╵╷╹╻╽╿"
_DIAGONAL = {"╱": "/", "╲": "\\", "╳": "X"}
_PLAIN = {
    "…": "~",  # rich ends truncated cells with this character; a single character keeps the columns aligned
    "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "―": "-", "−": "-", "⁄": "/", "∕": "/",
    "‘": "'", "’": "'", "‚": ",", "‛": "'", "“": '"', "”": '"', "„": '"',
    "′": "'", "″": '"', "«": '"', "»": '"', "‹": "<", "›": ">",
    "×": "x", "·": ".", "⋅": ".", "•": "*", "∙": ".", "±": "+-", "÷": "/", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "∞": "inf",
    "←": "<-", "→": "->", "↑": "^", "↓": "v", "⇒": "=>", "✓": "+", "✔": "+", "✗": "x", "✘": "x", "√": "sqrt",
    "°": "deg", "§": "S", "¦": "|", "¬": "-", "\u00a0": " ", "\u00ad": "-", "©": "(c)",
    "®": "(R)", "¶": "P", "£": "GBP", "€": "EUR",
    "ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d",
    "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "●": "*", "○": "o", "■": "#", "□": "o", "▶": ">", "◀": "<", "▲": "^", "▼": "v",
    "α": "a", "β": "b", "γ": "g", "δ": "d", "ε": "e", "λ": "l", "μ": "u", "σ": "s", "ω": "w",
}  # fmt: skip


def plain_letter(letter: str) -> str:
    """Return the ASCII text that replaces a character, or ? if there is no substitute.

    Letters lose their accents; lines are drawn with - | and +. Half of a surrogate pair stands for a byte in a path that is not
    valid text, and is replaced by the number of this byte, such as \\xe9.
    """
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if letter in _PLAIN:
        return _PLAIN[letter]
    if code in _BOX:
        return _DIAGONAL.get(letter) or ("-" if letter in _LEVEL else "|" if letter in _UPRIGHT else "+")
    if code in _BLOCKS:
        return "#"
    if 0x2800 <= code <= 0x28FF:  # patterns of dots, used for spinners
        return "."
    parts = unicodedata.normalize("NFKD", letter)
    if parts == letter:
        return "" if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf" else "?"
    return "".join(part if part.isascii() else plain_letter(part) for part in parts)


def encoding_of(stream_encoding: str) -> str:
    """Return `stream_encoding`, or `ASCII` in place of "ascii"."""
    return ASCII if codecs.lookup(stream_encoding).name == "ascii" else stream_encoding


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain_letter, error.object[error.start : error.end])), error.end


def _search(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != ASCII:
        return None
    base = codecs.lookup("ascii")
    parts = (base.streamreader, base.streamwriter, base.incrementalencoder, base.incrementaldecoder)
    return codecs.CodecInfo(base.encode, base.decode, *parts, name=ASCII)


codecs.register(_search)
codecs.register_error(STANDS_IN, _stand_in)
