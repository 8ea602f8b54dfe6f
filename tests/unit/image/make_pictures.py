# SPDX-License-Identifier: Apache-2.0
"""Small pictures in every form, and what Pillow makes of them: writes pictures.h.

    python tests/unit/image/make_pictures.py        # needs pillow

Pixels are told by their hash (FNV-1a of red, green and blue, row by row), which test_image.c computes too.
"""

import io
import os

from PIL import Image


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
    yield "webp", encoded(base, format="WEBP", lossless=True), None
    yield "webp_lossy", encoded(base, format="WEBP", quality=80), None
    yield "webp_frames", encoded(base, format="WEBP", save_all=True, append_images=[noise(19, 13)]), "refused"


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
        rows.append(f'    {{"{name}", {name}, sizeof {name}, {image.width}, {image.height}, '
                    f"0x{fnv(pixels) if meant != 'refused' else 0:016x}u}},\n")
    sizes = []
    for name, number in (("BILINEAR", 2), ("BICUBIC", 3)):
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
