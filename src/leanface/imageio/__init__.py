"""The edge: files to Image and back, with what has to survive. The only place that knows codecs.

Reading applies the EXIF orientation, so that everything inside is upright, and keeps EXIF, XMP, the ICC
profile, the resolution and more (see ``Origin``) for writing. Writing goes to a temporary file beside the
target, which gets its name only when it is whole.
"""

from leanface.imageio.formats import FORMATS, QUALITY, READABLE, STDIO, format_of, result_suffix
from leanface.imageio.metadata import Origin
from leanface.imageio.reading import content, decode, read, size_of
from leanface.imageio.writing import (
    check_free,
    check_size,
    check_writable,
    encode,
    remove_stale,
    write,
    write_text,
)
from leanface.types import MAX_PIXELS

__all__ = [
    "FORMATS", "MAX_PIXELS", "QUALITY", "READABLE", "STDIO", "Origin", "check_free", "check_size",
    "check_writable", "content", "decode", "encode", "format_of", "read", "remove_stale", "result_suffix",
    "size_of", "write", "write_text",
]  # fmt: skip
