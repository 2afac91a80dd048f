#!/usr/bin/env python3
"""Makes the images of examples/data/emoji from Debian's package fonts-noto-color-emoji, with fontTools and Pillow.

    examples/data/make_emoji.py NotoColorEmoji.ttf FOLDER
"""

import io
import os
import sys

from fontTools.ttLib import TTFont
from PIL import Image

CLASSES = {
    "animal": [(0x1F400, 0x1F43F), (0x1F980, 0x1F9AE), (0x1FAB0, 0x1FAB3)],
    "face": [(0x1F600, 0x1F644), (0x1F910, 0x1F917), (0x1F920, 0x1F92F), (0x1F970, 0x1F976), (0x1F479, 0x1F47F)],
    "food": [(0x1F32D, 0x1F330), (0x1F345, 0x1F37F), (0x1F950, 0x1F96F), (0x1F9C0, 0x1F9CB), (0x1FAD0, 0x1FAD6)],
    "vehicle": [(0x1F680, 0x1F6A4), (0x1F6A8, 0x1F6A8), (0x1F6B2, 0x1F6B2), (0x1F6E5, 0x1F6FC), (0x1F3CE, 0x1F3CE), (0x1F3CD, 0x1F3CD), (0x2708, 0x2708), (0x26F5, 0x26F5), (0x1F9BC, 0x1F9BD)],
}
SIZE = 64


def main():
    font, folder = TTFont(sys.argv[1]), sys.argv[2]
    characters, strike = font.getBestCmap(), font["CBDT"].strikeData[0]
    for name, ranges in CLASSES.items():
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        for code in (code for first, last in ranges for code in range(first, last + 1)):
            glyph = strike.get(characters.get(code))
            if glyph is None:
                continue
            image = Image.open(io.BytesIO(glyph.imageData)).convert("RGBA")
            square = Image.new("RGBA", (max(image.size),) * 2, "white")
            square.alpha_composite(image, tuple((max(image.size) - side) // 2 for side in image.size))
            square.convert("RGB").resize((SIZE, SIZE), Image.BICUBIC).save(f"{folder}/{name}/{code:x}.jpg", quality=80)


if __name__ == "__main__":
    main()
