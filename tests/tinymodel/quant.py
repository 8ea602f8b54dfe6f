# SPDX-License-Identifier: Apache-2.0
"""Block formats of GGUF files in numpy: float32 rows -> bytes and back.

The layouts are facts of the file format; the quantizers here are the plain ones (scale from the
extremes of the block, round to nearest), because the tests need blocks that are valid and different
from each other, not the smallest error. `dequantize` is the definition that goldens are made with;
test_tinymodel.py holds it against hand-made blocks, make_goldens.py against the `gguf` package.

An array of shape [..., n] becomes uint8 [..., n / block * bytes of a block].
"""

import numpy as np

QK_K = 256


# ---- half-width floats ----


def bf16_from_f32(x):
    """uint16 bit patterns, round to nearest even (no NaN expected)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def f32_from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _f16_bytes(x):
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8)


def _f16_read(b):
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _div(x, d):
    """x / d where d is not zero, else 0."""
    safe = np.where(d == 0, np.float32(1), d)
    return np.where(d == 0, np.float32(0), x / safe)


def _round(x):
    return np.floor(x + np.float32(0.5))


# ---- blocks of 32: one or two half floats for all ----


def _nibbles(q):
    """q [n, 32] of 0..15: value j shares a byte with value j + 16."""
    q = q.astype(np.uint8)
    return q[:, :16] | (q[:, 16:] << 4)


def _from_nibbles(b):
    return np.concatenate([b & 15, b >> 4], axis=1)


def _fifth_bits(q):
    """bit j of a little-endian 32-bit word = bit 4 of value j."""
    return np.packbits((q.astype(np.uint8) >> 4) & 1, axis=1, bitorder="little")


def _from_fifth_bits(b):
    return np.unpackbits(b, axis=1, bitorder="little") << 4


def _symmetric(x, half):
    """Scale such that the value of largest size becomes exactly -half (the longer side)."""
    at = np.argmax(np.abs(x), axis=1)[:, None]
    d = np.take_along_axis(x, at, axis=1) / np.float32(-half)
    d = d.astype(np.float16).astype(np.float32)
    return d, np.clip(_round(_div(x, d)) + half, 0, 2 * half - 1)


def _affine(x, top):
    low = x.min(axis=1, keepdims=True).astype(np.float16).astype(np.float32)
    d = ((x.max(axis=1, keepdims=True) - low) / np.float32(top)).astype(np.float16)
    d = d.astype(np.float32)
    return d, low, np.clip(_round(_div(x - low, d)), 0, top)


def _q4_0(x):
    d, q = _symmetric(x, 8)
    return np.hstack([_f16_bytes(d), _nibbles(q)])


def _de_q4_0(b):
    return _f16_read(b[:, :2]) * (_from_nibbles(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(x):
    d, m, q = _affine(x, 15)
    return np.hstack([_f16_bytes(d), _f16_bytes(m), _nibbles(q)])


def _de_q4_1(b):
    return _f16_read(b[:, :2]) * _from_nibbles(b[:, 4:]).astype(np.float32) + _f16_read(b[:, 2:4])


def _q5_0(x):
    d, q = _symmetric(x, 16)
    return np.hstack([_f16_bytes(d), _fifth_bits(q), _nibbles(q.astype(np.uint8) & 15)])


def _de_q5_0(b):
    q = _from_nibbles(b[:, 6:]) | _from_fifth_bits(b[:, 2:6])
    return _f16_read(b[:, :2]) * (q.astype(np.float32) - 16)


def _q5_1(x):
    d, m, q = _affine(x, 31)
    return np.hstack([_f16_bytes(d), _f16_bytes(m), _fifth_bits(q), _nibbles(q.astype(np.uint8) & 15)])


def _de_q5_1(b):
    q = _from_nibbles(b[:, 8:]) | _from_fifth_bits(b[:, 4:8])
    return _f16_read(b[:, :2]) * q.astype(np.float32) + _f16_read(b[:, 2:4])


def _q8_0(x):
    d = (np.abs(x).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float16)
    q = np.clip(_round(_div(x, d.astype(np.float32))), -127, 127).astype(np.int8)
    return np.hstack([_f16_bytes(d), q.view(np.uint8)])


def _de_q8_0(b):
    return _f16_read(b[:, :2]) * np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32)


# ---- blocks of 256: half float(s) times small integers, one per group of 16 or 32 ----
#
# Two-bit fields: byte h*32 + l holds, from the low end, the values h*128 + {0, 32, 64, 96} + l.


def _pack2(q):
    q = q.astype(np.uint8).reshape(-1, 2, 4, 32)
    return (q[:, :, 0] | (q[:, :, 1] << 2) | (q[:, :, 2] << 4) | (q[:, :, 3] << 6)).reshape(-1, 64)


def _unpack2(b):
    b = b.reshape(-1, 2, 1, 32)
    return ((b >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3).reshape(-1, QK_K)


def _groups_affine(x, size, top, scale_top):
    """x ~ d * sc * q - dmin * m with integers sc, m <= scale_top and q <= top."""
    g = x.reshape(len(x), QK_K // size, size)
    low = np.minimum(g.min(axis=2), 0)
    step = (g.max(axis=2) - low) / np.float32(top)
    d = (step.max(axis=1, keepdims=True) / np.float32(scale_top)).astype(np.float16)
    dmin = ((-low).max(axis=1, keepdims=True) / np.float32(scale_top)).astype(np.float16)
    d32, dmin32 = d.astype(np.float32), dmin.astype(np.float32)
    sc = np.clip(_round(_div(step, d32)), 0, scale_top)
    m = np.clip(_round(_div(-low, dmin32)), 0, scale_top)
    q = _div(g + (dmin32 * m)[:, :, None], (d32 * sc)[:, :, None])
    return d, dmin, sc, m, np.clip(_round(q), 0, top).reshape(len(x), QK_K)


def _groups_symmetric(x, half, scale_half):
    """x ~ d * sc * (q - half), groups of 16, sc in [-scale_half, scale_half)."""
    g = x.reshape(len(x), 16, 16)
    at = np.argmax(np.abs(g), axis=2)[:, :, None]
    step = np.take_along_axis(g, at, axis=2)[:, :, 0] / np.float32(-half)
    top = np.argmax(np.abs(step), axis=1)[:, None]
    d = (np.take_along_axis(step, top, axis=1) / np.float32(-scale_half)).astype(np.float16)
    d32 = d.astype(np.float32)
    sc = np.clip(_round(_div(step, d32)), -scale_half, scale_half - 1)
    q = _round(_div(g, (d32 * sc)[:, :, None])) + half
    return d, sc, np.clip(q, 0, 2 * half - 1).reshape(len(x), QK_K)


def _q2_k(x):
    d, dmin, sc, m, q = _groups_affine(x, 16, 3, 15)
    scales = sc.astype(np.uint8) | (m.astype(np.uint8) << 4)
    return np.hstack([scales, _pack2(q), _f16_bytes(d), _f16_bytes(dmin)])


def _de_q2_k(b):
    d, dmin = _f16_read(b[:, 80:82]), _f16_read(b[:, 82:84])
    sc = np.repeat(d * (b[:, :16] & 15).astype(np.float32), 16, axis=1)
    m = np.repeat(dmin * (b[:, :16] >> 4).astype(np.float32), 16, axis=1)
    return sc * _unpack2(b[:, 16:80]).astype(np.float32) - m


def _q3_k(x):
    d, sc, q = _groups_symmetric(x, 4, 32)
    q = q.astype(np.uint8)
    # The third bit of value g*32 + l is bit g of byte l.
    high = (q >> 2).reshape(-1, 8, 32)
    hmask = np.zeros((len(x), 32), np.uint8)
    for g in range(8):
        hmask |= high[:, g] << g
    s = (sc + 32).astype(np.uint8)
    scales = np.zeros((len(x), 12), np.uint8)
    scales[:, :8] = (s[:, :8] & 15) | ((s[:, 8:] & 15) << 4)
    for i in range(16):
        scales[:, 8 + i % 4] |= (s[:, i] >> 4) << (2 * (i // 4))
    return np.hstack([hmask, _pack2(q & 3), scales, _f16_bytes(d)])


def _de_q3_k(b):
    scales = b[:, 96:108]
    low = np.concatenate([scales[:, :8] & 15, scales[:, :8] >> 4], axis=1)
    high = np.stack([(scales[:, 8 + i % 4] >> (2 * (i // 4))) & 3 for i in range(16)], axis=1)
    sc = (low | (high << 4)).astype(np.float32) - 32
    bit2 = np.stack([(b[:, :32] >> g) & 1 for g in range(8)], axis=1).reshape(-1, QK_K)
    q = (_unpack2(b[:, 32:96]) | (bit2 << 2)).astype(np.float32) - 4
    return np.repeat(_f16_read(b[:, 108:110]) * sc, 16, axis=1) * q


def _pack_k4(sc, m):
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes."""
    sc, m = sc.astype(np.uint8), m.astype(np.uint8)
    out = np.zeros((len(sc), 12), np.uint8)
    out[:, 0:4] = (sc[:, :4] & 63) | ((sc[:, 4:] >> 4) << 6)
    out[:, 4:8] = (m[:, :4] & 63) | ((m[:, 4:] >> 4) << 6)
    out[:, 8:12] = (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    return out


def _unpack_k4(b):
    sc = np.concatenate([b[:, 0:4] & 63, (b[:, 8:12] & 15) | ((b[:, 0:4] >> 6) << 4)], axis=1)
    m = np.concatenate([b[:, 4:8] & 63, (b[:, 8:12] >> 4) | ((b[:, 4:8] >> 6) << 4)], axis=1)
    return sc.astype(np.float32), m.astype(np.float32)


def _pack4_pairs(q):
    """Byte p*32 + l: values p*64 + l (low) and p*64 + 32 + l (high)."""
    q = q.astype(np.uint8).reshape(-1, 4, 2, 32)
    return (q[:, :, 0] | (q[:, :, 1] << 4)).reshape(-1, 128)


def _unpack4_pairs(b):
    b = b.reshape(-1, 4, 32)
    return np.stack([b & 15, b >> 4], axis=2).reshape(-1, QK_K)


def _q4_k(x):
    d, dmin, sc, m, q = _groups_affine(x, 32, 15, 63)
    return np.hstack([_f16_bytes(d), _f16_bytes(dmin), _pack_k4(sc, m), _pack4_pairs(q)])


def _scaled_k4(b, q):
    sc, m = _unpack_k4(b[:, 4:16])
    d, dmin = _f16_read(b[:, 0:2]), _f16_read(b[:, 2:4])
    return np.repeat(d * sc, 32, axis=1) * q - np.repeat(dmin * m, 32, axis=1)


def _de_q4_k(b):
    return _scaled_k4(b, _unpack4_pairs(b[:, 16:]).astype(np.float32))


def _q5_k(x):
    d, dmin, sc, m, q = _groups_affine(x, 32, 31, 63)
    q = q.astype(np.uint8)
    high = (q >> 4).reshape(-1, 8, 32)
    qh = np.zeros((len(x), 32), np.uint8)
    for g in range(8):
        qh |= high[:, g] << g
    head = [_f16_bytes(d), _f16_bytes(dmin), _pack_k4(sc, m)]
    return np.hstack(head + [qh, _pack4_pairs(q & 15)])


def _de_q5_k(b):
    high = np.stack([(b[:, 16:48] >> g) & 1 for g in range(8)], axis=1).reshape(-1, QK_K)
    return _scaled_k4(b, (_unpack4_pairs(b[:, 48:]) | (high << 4)).astype(np.float32))


def _q6_k(x):
    d, sc, q = _groups_symmetric(x, 32, 128)
    # Per half of 128: rows 0 and 2 share nibbles of bytes 0..31, rows 1 and 3 of bytes 32..63.
    q = q.astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.stack([(q[:, :, 0] & 15) | ((q[:, :, 2] & 15) << 4),
                    (q[:, :, 1] & 15) | ((q[:, :, 3] & 15) << 4)], axis=2)
    scales = sc.astype(np.int8).view(np.uint8)
    return np.hstack([low.reshape(-1, 128), _pack2((q >> 4).reshape(-1, QK_K)), scales, _f16_bytes(d)])


def _de_q6_k(b):
    low = b[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, QK_K)
    q = (low | (_unpack2(b[:, 128:192]) << 4)).astype(np.float32) - 32
    sc = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return np.repeat(_f16_read(b[:, 208:210]) * sc, 16, axis=1) * q


# ---- four bits that name one of 16 values ----

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
                      np.float32)


def _iq4_nearest(x):
    return np.abs(x[..., None] - IQ4_VALUES).argmin(axis=-1).astype(np.uint8)


def _iq4_step(x):
    """The number of largest size becomes -127."""
    at = np.argmax(np.abs(x), axis=-1)[..., None]
    return np.take_along_axis(x, at, axis=-1) / np.float32(-127)


def _iq4_nl(x):
    d = _iq4_step(x).astype(np.float16)
    return np.hstack([_f16_bytes(d), _nibbles(_iq4_nearest(_div(x, d.astype(np.float32))))])


def _de_iq4_nl(b):
    return _f16_read(b[:, :2]) * IQ4_VALUES[_from_nibbles(b[:, 2:])]


def _iq4_xs(x):
    g = x.reshape(-1, 8, 32)
    step = _iq4_step(g)[:, :, 0]
    top = np.argmax(np.abs(step), axis=1)[:, None]
    d = (np.take_along_axis(step, top, axis=1) / np.float32(-32)).astype(np.float16)
    d32 = d.astype(np.float32)
    sc = np.clip(_round(_div(step, d32)), -32, 31)
    q = _iq4_nearest(_div(g, (d32 * sc)[:, :, None]))
    bits = (sc + 32).astype(np.uint16)
    high = np.zeros((len(x), 1), np.uint16)
    for j in range(8):
        high[:, 0] |= (bits[:, j] >> 4) << (2 * j)
    low = ((bits[:, 0::2] & 15) | ((bits[:, 1::2] & 15) << 4)).astype(np.uint8)
    qs = _nibbles(q.reshape(-1, 32)).reshape(len(x), -1)
    return np.hstack([_f16_bytes(d), high.view(np.uint8), low, qs])


def _de_iq4_xs(b):
    high = np.ascontiguousarray(b[:, 2:4]).view(np.uint16)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    top = np.concatenate([(high >> (2 * j)) & 3 for j in range(8)], axis=1)
    sc = (low | (top << 4)).astype(np.float32) - 32
    q = IQ4_VALUES[_from_nibbles(np.ascontiguousarray(b[:, 8:]).reshape(-1, 16))].reshape(-1, QK_K)
    return np.repeat(_f16_read(b[:, :2]) * sc, 32, axis=1) * q


MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32) / 2


def mxfp4_parts(x):
    """E8M0 scales [.., 1] and E2M1 codes of blocks [.., 32]: the largest number gets the exponent of 4."""
    top = np.abs(x).max(axis=-1, keepdims=True)
    e = np.where(top > 0, np.frexp(top)[1] - 1 - 2 + 127, 0).astype(np.int64).clip(0, 254)
    scaled = np.ldexp(x, 127 - e)
    return e.astype(np.uint8), np.abs(scaled[..., None] - MXFP4_VALUES).argmin(axis=-1).astype(np.uint8)


def _mxfp4(x):
    e, q = mxfp4_parts(x)
    return np.hstack([e, _nibbles(q)])


def _de_mxfp4(b):
    return np.ldexp(MXFP4_VALUES[_from_nibbles(np.ascontiguousarray(b[:, 1:]))], b[:, :1].astype(np.int32) - 127)


# ---- the table ----


class Format:
    def __init__(self, type_id, block, size, pack, unpack, fallback=None):
        self.type_id = type_id  # number in the tensor table of a GGUF file
        self.block = block  # values of one block
        self.size = size  # bytes of one block
        self.pack, self.unpack = pack, unpack
        self.fallback = fallback  # what llama.cpp takes when rows are no multiple of 256


FORMATS = {
    "f32": Format(0, 1, 4, lambda x: np.ascontiguousarray(x, "<f4").view(np.uint8),
                  lambda b: np.ascontiguousarray(b).view("<f4").astype(np.float32)),
    "f16": Format(1, 1, 2, _f16_bytes, _f16_read),
    "bf16": Format(30, 1, 2, lambda x: bf16_from_f32(x).view(np.uint8),
                   lambda b: f32_from_bf16(np.ascontiguousarray(b).view("<u2"))),
    "q4_0": Format(2, 32, 18, _q4_0, _de_q4_0, "f16"),
    "q4_1": Format(3, 32, 20, _q4_1, _de_q4_1, "f16"),
    "q5_0": Format(6, 32, 22, _q5_0, _de_q5_0, "f16"),
    "q5_1": Format(7, 32, 24, _q5_1, _de_q5_1, "f16"),
    "q8_0": Format(8, 32, 34, _q8_0, _de_q8_0, "f16"),
    "q2_k": Format(10, QK_K, 84, _q2_k, _de_q2_k, "q4_0"),
    "q3_k": Format(11, QK_K, 110, _q3_k, _de_q3_k, "q4_0"),
    "q4_k": Format(12, QK_K, 144, _q4_k, _de_q4_k, "q5_0"),
    "q5_k": Format(13, QK_K, 176, _q5_k, _de_q5_k, "q5_1"),
    "q6_k": Format(14, QK_K, 210, _q6_k, _de_q6_k, "q8_0"),
    "iq4_nl": Format(20, 32, 18, _iq4_nl, _de_iq4_nl, "f16"),
    "iq4_xs": Format(23, QK_K, 136, _iq4_xs, _de_iq4_xs, "iq4_nl"),
    "mxfp4": Format(39, 32, 17, _mxfp4, _de_mxfp4, "f16"),
}
BY_TYPE_ID = {f.type_id: name for name, f in FORMATS.items()}


def fitting(name, row):
    """`name`, or what takes its place for rows of `row` values."""
    while row % FORMATS[name].block != 0:
        name = FORMATS[name].fallback
    return name


def quantize(x, name):
    f = FORMATS[name]
    x = np.ascontiguousarray(x, np.float32)
    packed = f.pack(x.reshape(-1, f.block))
    return packed.reshape(*x.shape[:-1], x.shape[-1] // f.block * f.size)


def dequantize(b, name):
    f = FORMATS[name]
    b = np.ascontiguousarray(b, np.uint8)
    x = f.unpack(b.reshape(-1, f.size))
    return x.reshape(*b.shape[:-1], b.shape[-1] // f.size * f.block)
