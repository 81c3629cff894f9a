"""PNG images without what programs write into them beside the picture."""

from hf_cyclical.core import PruningError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# What a picture looks like depends on these; text, dates, EXIF and profiles are in others.
_OF_THE_PICTURE = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"pHYs"}


def without_text(data: bytes, name: str) -> bytes:
    """The same picture without text, dates, and anything behind its end.

    Args:
        data: A PNG file.
        name: How errors call it.

    Raises:
        PruningError: If it is no PNG file, or damaged.
    """
    if not data.startswith(_SIGNATURE):
        raise PruningError(f"{name} is no PNG image: draw it again, or take it out")
    kept, place = [_SIGNATURE], len(_SIGNATURE)
    while place + 12 <= len(data):
        kind, end = data[place + 4 : place + 8], place + 12 + int.from_bytes(data[place : place + 4], "big")
        if kind in _OF_THE_PICTURE:
            kept.append(data[place:end])
        if kind == b"IEND" and end <= len(data):
            return b"".join(kept)
        place = end
    raise PruningError(f"{name} is damaged: draw it again, or take it out")
