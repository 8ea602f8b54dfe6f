# SPDX-License-Identifier: Apache-2.0
"""Small pictures in every form, and what Pillow makes of them: writes pictures.h.

    python tests/unit/image/make_pictures.py        # needs pillow

Pixels are told by their hash (FNV-1a of red, green and blue, row by row), which test_image.c computes too.
"""

import io
import os
import struct

from PIL import Image, ImageOps


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % (1 << 64)
    return h


def noise(width, height, seed=1):
    """The pixels that test_image.c draws as well."""
    out, x = bytearray(), seed
    for _ in range(width * height * 3):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out.append(x >> 56)
    return Image.frombytes("RGB", (width, height), bytes(out))


def smooth(width, height):
    return noise(4, 3, 7).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, **how):
    f = io.BytesIO()
    image.save(f, **how)
    return f.getvalue()


def pictures():
    base = smooth(19, 13)
    alpha = base.copy()
    alpha.putalpha(Image.linear_gradient("L").resize((19, 13)))
    cmyk = base.convert("CMYK")
    sixteen = Image.frombytes("I;16", (5, 3), bytes(range(30)))
    yield "jpeg", encoded(base, format="JPEG", quality=90), None
    yield "jpeg_grey", encoded(base.convert("L"), format="JPEG"), None
    yield "jpeg_cmyk", encoded(cmyk, format="JPEG"), None
    yield "jpeg_progressive", encoded(base, format="JPEG", progressive=True), None
    yield "png", encoded(base, format="PNG"), None
    yield "png_alpha", encoded(alpha, format="PNG"), None
    yield "png_palette", encoded(base.quantize(7), format="PNG"), None
    yield "png_bits", encoded(base.convert("1"), format="PNG"), None
    # the upper byte, rounded: Pillow has no such conversion
    deep = Image.new("RGB", (5, 3))
    deep.putdata([((v * 255 + 32895) >> 16,) * 3 for v in
                  (int.from_bytes(bytes(range(30))[i:i + 2], "little") for i in range(0, 30, 2))])
    yield "png_16", encoded(sixteen, format="PNG"), deep
    yield from turned(base)
    yield "webp", encoded(base, format="WEBP", lossless=True), None
    yield "webp_lossy", encoded(base, format="WEBP", quality=80), None
    yield "webp_frames", encoded(base, format="WEBP", save_all=True, append_images=[noise(19, 13)]), "refused"


def turned(base):
    """Every orientation, in every place that Exif has, in both orders of bytes."""
    for i in range(1, 10):
        exif = Image.Exif()
        exif[0x010f] = "a camera"
        exif[0x0112] = i
        yield f"jpeg_turned_{i}", *upright(encoded(base, format="JPEG", exif=exif))
    for order in "<>":
        head = b"II*\0" if order == "<" else b"MM\0*"
        name = "little" if order == "<" else "big"
        wide = head + struct.pack(f"{order}IHHHIII", 8, 1, 0x0112, 4, 1, 6, 0)
        two = head + struct.pack(f"{order}IHHHIHHHHIHHI", 8, 2, 0x0112, 3, 1, 3, 0, 0x0112, 3, 1, 5, 0, 0)
        pair = head + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 2, 3, 3, 0)
        far = head + struct.pack(f"{order}IHHHIIIHHH", 8, 1, 0x0112, 3, 3, 26, 0, 7, 1, 1)
        for kind, data in (("wide", wide), ("two", two), ("pair", pair), ("far", far)):
            yield f"png_{kind}_{name}", *upright(encoded(base, format="PNG", exif=data))
    yield "webp_turned", *upright(encoded(base, format="WEBP", lossless=True, exif=b"Exif\0\0" + two))
    yield "webp_turned_plain", *upright(encoded(base, format="WEBP", lossless=True, exif=wide))


def upright(data):
    """A picture and what image processors see of it."""
    return data, ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def main():
    rows, arrays = [], []
    for name, data, meant in pictures():
        image = Image.open(io.BytesIO(data))
        pixels = (meant if isinstance(meant, Image.Image) else image.convert("RGB")).tobytes()
        text = ", ".join(str(b) for b in data)
        lines, line = [], ""
        for word in text.split(" "):
            if len(line) + len(word) > 110:
                lines.append(line.rstrip())
                line = ""
            line += word + " "
        lines.append(line.rstrip())
        arrays.append(f"static const uint8_t {name}[] = {{\n    " + "\n    ".join(lines) + "};\n")
        size = meant.size if isinstance(meant, Image.Image) else image.size
        rows.append(f'    {{"{name}", {name}, sizeof {name}, {size[0]}, {size[1]}, '
                    f"0x{fnv(pixels) if meant != 'refused' else 0:016x}u}},\n")
    sizes = []
    for name, number in (("LANCZOS", 1), ("BILINEAR", 2), ("BICUBIC", 3)):
        for (w, h), (to_w, to_h) in (((37, 23), (16, 16)), ((37, 23), (64, 50)), ((5, 90), (40, 9)), ((33, 8), (33, 21)),
                                     ((700, 11), (14, 14)), ((1, 1), (7, 3))):
            # in two steps: which comes first is the version's choice
            out = noise(w, h).resize((to_w, h), Image.Resampling(number)).resize((to_w, to_h), Image.Resampling(number))
            sizes.append(f"    {{NRD_IMAGE_{name}, {w}, {h}, {to_w}, {to_h}, 0x{fnv(out.tobytes()):016x}u}},\n")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures.h")
    with open(path, "w", encoding="ascii") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0\n * Written by make_pictures.py: pictures, and hashes of the pixels "
                "that Pillow has for them (0: it is refused). */\n#include \"image/image.h\"\n\n")
        f.write("\n".join(arrays))
        f.write("\nstatic const struct picture {\n    const char *name;\n    const uint8_t *bytes;\n    size_t n;\n"
                "    int32_t width, height;\n    uint64_t hash;\n} pictures[] = {\n" + "".join(rows) + "};\n")
        f.write("\nstatic const struct sizing {\n    nrd_image_filter filter;\n    int32_t width, height, to_width, to_height;\n"
                "    uint64_t hash;\n} sizings[] = {\n" + "".join(sizes) + "};\n")


main()
