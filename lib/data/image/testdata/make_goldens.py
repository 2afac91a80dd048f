#!/usr/bin/env python3
"""Writes the goldens beside this file: what Pillow and torchvision make of small images.

Needs Pillow 13, torchvision 0.19 and numpy. A line of a file is a case: its name, then words of the form key=value. Pixels and
files are in hexadecimal.
"""

import io
import pathlib
import zlib

import numpy
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent


def picture(width, height, channels, seed):
    """Returns the pixels of TestPicture() in encoded_jpeg.h."""
    pixels = numpy.zeros((height, width, channels), numpy.uint8)
    state = (seed * 2654435761 + 1) % 2**32
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                state = (state * 1664525 + 1013904223) % 2**32
                smooth = (x * (3 + c) + y * 2 * (c + 1)) // 5 + seed
                edge = ((x // 13 + y // 17 + c) & 3) * 40
                pixels[y, x, c] = (smooth + edge + (state >> 28)) % 256
    return pixels


def write(name, cases):
    with open(FOLDER / name, "w") as file:
        for case, words in cases:
            file.write(" ".join([case] + [f"{key}={value}" for key, value in words.items()]) + "\n")


def decode_case(name, data):
    image = Image.open(io.BytesIO(data))
    return name, {
        "width": image.width,
        "height": image.height,
        "file": data.hex(),
        "rgb": image.convert("RGB").tobytes().hex(),
        "gray": image.convert("L").tobytes().hex(),
    }


def encoded(image, format, **options):
    data = io.BytesIO()
    image.save(data, format, **options)
    return data.getvalue()


def decode_cases():
    rgb = Image.fromarray(picture(13, 9, 3, 1))
    alpha = Image.fromarray(numpy.arange(13 * 9, dtype=numpy.uint8).reshape(9, 13))
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    gray = rgb.convert("L")
    deep = Image.fromarray((numpy.arange(13 * 9, dtype=numpy.uint16) * 5).reshape(9, 13))
    indexed = rgb.quantize(16)
    cases = [
        ("png_rgb", encoded(rgb, "PNG")),
        ("png_rgba", encoded(rgba, "PNG")),
        ("png_gray", encoded(gray, "PNG")),
        ("png_gray_alpha", encoded(rgba.convert("LA"), "PNG")),
        ("png_bilevel", encoded(gray.convert("1"), "PNG")),
        ("png_gray_16", encoded(deep, "PNG")),
        ("png_palette", encoded(indexed, "PNG")),
        ("png_palette_4_bits", encoded(indexed, "PNG", bits=4)),
        ("png_palette_transparent", encoded(indexed, "PNG", transparency=3)),
        ("webp_lossless", encoded(rgb, "WEBP", lossless=True)),
        ("webp_lossless_alpha", encoded(rgba, "WEBP", lossless=True, exact=True)),
        ("webp_lossy", encoded(rgb, "WEBP", quality=80)),
        ("jpeg_cmyk", encoded(rgb.convert("CMYK"), "JPEG", quality=90)),
        ("jpeg_gray", encoded(gray, "JPEG")),
        ("jpeg_444", encoded(rgb, "JPEG", subsampling=0)),
        ("jpeg_420", encoded(rgb, "JPEG", subsampling=2)),
    ]
    return [decode_case(name, data) for name, data in cases]


FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def planar(image):
    """Returns the pixels as [channels, height, width]."""
    array = numpy.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def resample_cases():
    """Checksums of resized images: whole, and a window that is flipped."""
    sizes = [
        (40, 30, 17, 13),
        (40, 30, 40, 30),
        (40, 30, 40, 17),
        (40, 30, 19, 30),
        (33, 21, 70, 64),
        (97, 61, 32, 32),
        (200, 3, 7, 5),
        (150, 140, 4, 3),
        (1, 1, 5, 6),
        (5, 64, 1, 1),
        (301, 7, 224, 9),
        (131, 96, 64, 224),
    ]
    cases = []
    for seed, (width, height, to_width, to_height) in enumerate(sizes):
        for channels in (1, 3):
            pixels = picture(width, height, channels, seed)
            image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
            for name, resample in FILTERS.items():
                resized = planar(image.resize((to_width, to_height), resample))
                left, top = to_width // 3, to_height // 4
                window = resized[:, top : to_height - to_height // 5, left : to_width - to_width // 6]
                words = {
                    "width": width,
                    "height": height,
                    "to_width": to_width,
                    "to_height": to_height,
                    "channels": channels,
                    "seed": seed,
                    "checksum": zlib.crc32(resized.tobytes()),
                    "across": zlib.crc32(numpy.ascontiguousarray(window[:, :, ::-1]).tobytes()),
                    "down": zlib.crc32(numpy.ascontiguousarray(window[:, ::-1]).tobytes()),
                }
                cases.append((name, words))
    return cases


write("decode.txt", decode_cases())
write("resample.txt", resample_cases())
