#!/usr/bin/env python3
"""Writes the goldens beside this file: what Pillow and torchvision make of small images.

Needs Pillow 13, torchvision 0.19 and numpy. A line of a file is a case: its name, then words of the form key=value. Pixels and
files are in hexadecimal.
"""

import io
import pathlib
import zlib

import numpy
from PIL import Image, ImageOps
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F

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


def augment_case(name, image, **words):
    return name, {**words, "checksum": zlib.crc32(planar(image).tobytes())}


def augment_cases():
    """What the functions of torchvision make of one picture with given parameters."""
    cases = []
    for channels in (1, 3):
        pixels = picture(23, 17, channels, 5)
        image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
        dark = Image.fromarray(numpy.asarray(image) // 3 + 20)
        adjust = {
            "brightness": F.adjust_brightness,
            "contrast": F.adjust_contrast,
            "saturation": F.adjust_saturation,
            "sharpness": F.adjust_sharpness,
        }
        for name, function in adjust.items():
            for factor in (0.0, 0.37, 1.0, 1.9):
                cases.append(augment_case(name, function(image, factor), channels=channels, factor=factor))
        for factor in (-0.5, -0.13, 0.0, 0.21, 0.5):
            cases.append(augment_case("hue", F.adjust_hue(image, factor), channels=channels, factor=factor))
        for bits in (4, 7, 8):
            cases.append(augment_case("posterize", F.posterize(image, bits), channels=channels, factor=bits))
        for threshold in (0.0, 100.5, 255.0):
            cases.append(augment_case("solarize", F.solarize(image, threshold), channels=channels, factor=threshold))
        for source, dimmed in ((image, 0), (dark, 1)):
            cases.append(augment_case("autocontrast", F.autocontrast(source), channels=channels, factor=dimmed))
            cases.append(augment_case("equalize", F.equalize(source), channels=channels, factor=dimmed))
        for mode in ("nearest", "bilinear", "bicubic"):
            for operation, magnitude in (
                ("ShearX", 0.3),
                ("ShearX", -0.11),
                ("ShearY", 0.2),
                ("ShearY", -0.3),
                ("TranslateX", 5.7),
                ("TranslateY", -3.2),
                ("Rotate", 30.0),
                ("Rotate", -9.0),
                ("Rotate", 0.0),
            ):
                result = autoaugment._apply_op(image, operation, magnitude, InterpolationMode(mode), None)
                cases.append(augment_case(operation, result, channels=channels, factor=magnitude, filter=mode))
        for orientation in range(1, 9):
            turned = image.copy()
            turned.getexif()[0x0112] = orientation
            result = ImageOps.exif_transpose(turned)
            cases.append(augment_case("orientation", result, channels=channels, factor=orientation))
    return cases


def rand_augment_cases():
    """The magnitudes of RandAugment's operations."""
    cases = []
    for bins, index in ((31, 0), (31, 9), (31, 17), (31, 30), (10, 4), (2, 1)):
        space = autoaugment.RandAugment()._augmentation_space(bins, (224, 333))
        for name, (magnitudes, signed) in space.items():
            magnitude = float(magnitudes[index].item()) if magnitudes.ndim > 0 else 0.0
            cases.append((name, {"bins": bins, "index": index, "magnitude": repr(magnitude), "signed": int(signed)}))
    return cases


def evaluation_cases():
    """What torchvision makes of files for evaluation."""
    image = Image.fromarray(picture(40, 31, 3, 3))
    files = {
        "png": encoded(image, "PNG"),
        "jpeg": encoded(image, "JPEG", quality=90),
        "gray": encoded(image.convert("L"), "PNG"),
    }
    recipes = {
        "resize_center": T.Compose([T.Resize(21), T.CenterCrop((18, 16))]),
        "bicubic": T.Resize((18, 16), InterpolationMode.BICUBIC),
        "padded": T.Compose([T.Resize((11, 21)), T.CenterCrop((18, 16))]),
    }
    cases = []
    for format, data in files.items():
        decoded = Image.open(io.BytesIO(data)).convert("RGB")
        for name, recipe in recipes.items():
            tensor = T.ToTensor()(recipe(decoded))
            normalized = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(tensor)
            words = {
                "format": format,
                "file": data.hex(),
                "pixels": planar(recipe(decoded)).tobytes().hex(),
                "first": repr(float(normalized[0, 12, 9])),
                "last": repr(float(normalized[2, 12, 9])),
            }
            cases.append((name, words))
    return cases


write("evaluation.txt", evaluation_cases())
write("augment.txt", augment_cases())
write("rand_augment.txt", rand_augment_cases())
write("decode.txt", decode_cases())
write("resample.txt", resample_cases())
