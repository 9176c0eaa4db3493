"""Words as pixels, in the font that Pillow brings along."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont


def lettering(text: str, size: int, width: int) -> NDArray[np.uint8]:
    """One line of text.

    Args:
        text: what to write.
        size: of the letters in pixels; less where the line would not fit.
        width: that it has to fit into.

    Returns:
        [height, at most width], 0 where there is nothing to 255 where a letter is.
    """
    for smaller in range(size, 4, -1):
        font = ImageFont.load_default(smaller)
        left, _, right, bottom = font.getbbox(text)
        if right - left <= width:
            break
    picture = PillowImage.new("L", (min(width, max(1, round(right - left))), max(1, round(bottom))))
    ImageDraw.Draw(picture).text((-left, 0), text, fill=255, font=font)
    return np.asarray(picture)
