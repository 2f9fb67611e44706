#!/usr/bin/env python3
"""Plain numpy encoders and decoders of the GGUF block formats.

What: quantise(x, type) -> bytes [rows, row_bytes] and dequantise(bytes, type, columns) -> f32, for
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL and MXFP4.
Why here: quantised golden files must be rebuilt without pip; the gguf package cannot write K types
anyway. check_quants.py compares both directions with that package where it has them.
Must not know: tensor names, models, files.

Encoders take the simplest choice (range of the block, nearest code): they only make files, and what
is compared is the arithmetic after decoding. Everything is elementwise f32/f64, so the bytes are
the same on every machine.
"""

import numpy as np

BLOCK = {  # type: (ggml type id, elements, bytes)
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
    "IQ4_NL": (20, 32, 18),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}
IQ4_TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _f16(x):
    """[n, 1] f32 -> (bytes [n, 2], the f32 value a reader sees)."""
    h = x.astype("<f2")
    return h.view(np.uint8).reshape(-1, 2), h.astype(np.float32)


def _read_f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _round(x):
    """Half away from zero, as C's roundf."""
    return np.trunc(x + np.copysign(np.float32(0.5), x))


def _divide(a, b):
    """a / b in f32, and 0 where b is 0."""
    return np.divide(
        a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0
    )


def _inverse(d):
    return _divide(np.ones_like(d), d)


def _nibbles(q):
    """[n, 32] codes 0..15 -> [n, 16] bytes: low nibble = element i, high = i + 16."""
    q = q.astype(np.uint8)
    return q[:, :16] | (q[:, 16:] << 4)


def _unnibble(b):
    return np.concatenate([b & 15, b >> 4], axis=1)


def _pack_bits(bits):
    """[n, 32] of 0/1 -> [n, 4] bytes, element i at bit i of a little-endian u32."""
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")


def _signed_extreme(x):
    """[n, 1]: the value of largest magnitude, with its sign (first on ties)."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)


def _quantise_legacy(x, kind):
    """Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 of x [n, 32], rounding as ggml's reference code does."""
    five = kind.startswith("Q5")
    levels = 32 if five else 16
    if kind == "Q8_0":
        d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
        return np.concatenate(
            [_f16(d)[0], _round(x * _inverse(d)).astype(np.int8).view(np.uint8)], axis=1
        )
    if kind.endswith("_0"):
        d = _signed_extreme(x) / np.float32(-levels // 2)
        head = _f16(d)[0]
        q = np.trunc(x.astype(np.float64) * _inverse(d) + (levels // 2 + 0.5)).clip(0, levels - 1)
    else:
        low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
        d = (high - low) / np.float32(levels - 1)
        head = np.concatenate([_f16(d)[0], _f16(low)[0]], axis=1)
        q = np.trunc((x - low) * _inverse(d) + np.float32(0.5)).clip(0, levels - 1)
    q = q.astype(np.uint8)
    return np.concatenate(
        [head] + ([_pack_bits(q >> 4)] if five else []) + [_nibbles(q & 15)], axis=1
    )


def _dequantise_legacy(b, kind):
    d = _read_f16(b[:, :2])
    if kind == "Q8_0":
        return d * b[:, 2:].view(np.int8).astype(np.float32)
    at = 2 if kind.endswith("_0") else 4
    q = _unnibble(b[:, -16:])
    if kind.startswith("Q5"):
        q = q | (np.unpackbits(b[:, at : at + 4], axis=1, bitorder="little") << 4)
    q = q.astype(np.float32)
    if kind.endswith("_0"):
        return d * (q - np.float32(16 if kind.startswith("Q5") else 8))
    return d * q + _read_f16(b[:, 2:4])


def _pack_scales(sc, m):
    """6-bit scales and mins [n, 8] -> 12 bytes: four of each plain, the other four spread over the
    top bits."""
    sc, m = sc.astype(np.uint8), m.astype(np.uint8)
    out = np.zeros((sc.shape[0], 12), np.uint8)
    out[:, 0:4] = sc[:, :4] | ((sc[:, 4:] >> 4) << 6)
    out[:, 4:8] = m[:, :4] | ((m[:, 4:] >> 4) << 6)
    out[:, 8:12] = (sc[:, 4:] & 15) | ((m[:, 4:] & 15) << 4)
    return out


def _unpack_scales(b):
    sc = np.concatenate([b[:, :4] & 63, (b[:, 8:] & 15) | ((b[:, :4] >> 6) << 4)], axis=1)
    m = np.concatenate([b[:, 4:8] & 63, (b[:, 8:] >> 4) | ((b[:, 4:8] >> 6) << 4)], axis=1)
    return sc.astype(np.float32), m.astype(np.float32)


def _quantise_k(x, levels):
    """Q4_K (levels 16) and Q5_K (levels 32) of x [n, 256]."""
    sub = x.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=2), np.float32(0))
    scale = (sub.max(axis=2) - low) / np.float32(levels - 1)
    d_bytes, d = _f16(scale.max(axis=1, keepdims=True) / np.float32(63))
    m_bytes, dmin = _f16((-low).max(axis=1, keepdims=True) / np.float32(63))
    sc = np.rint(_divide(scale, d)).clip(0, 63)
    m = np.rint(_divide(-low, dmin)).clip(0, 63)
    q = (
        np.rint(_divide(sub + (dmin * m)[:, :, None], (d * sc)[:, :, None]))
        .clip(0, levels - 1)
        .astype(np.uint8)
    )
    pairs = q.reshape(-1, 4, 2, 32)  # 64-element chunk c: low nibbles sub 2c, high sub 2c + 1
    low4 = ((pairs[:, :, 0] & 15) | ((pairs[:, :, 1] & 15) << 4)).reshape(-1, 128)
    parts = [d_bytes, m_bytes, _pack_scales(sc, m)]
    if levels == 32:
        parts.append(
            ((q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1).astype(np.uint8)
        )
    return np.concatenate(parts + [low4], axis=1)


def _dequantise_k(b, levels):
    d, dmin = _read_f16(b[:, :2]), _read_f16(b[:, 2:4])
    sc, m = _unpack_scales(b[:, 4:16])
    packed = b[:, -128:].reshape(-1, 4, 32)
    q = np.stack([packed & 15, packed >> 4], axis=2).reshape(-1, 8, 32)
    if levels == 32:
        q = q | (
            ((b[:, 16:48][:, None, :] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1) << 4
        )
    return ((d * sc)[:, :, None] * q.astype(np.float32) - (dmin * m)[:, :, None]).reshape(-1, 256)


def _quantise_q6_k(x):
    sub = x.reshape(-1, 16, 16)
    scale = np.abs(sub).max(axis=2) / np.float32(31)
    d_bytes, d = _f16(scale.max(axis=1, keepdims=True) / np.float32(127))
    sc = np.rint(_divide(scale, d)).clip(0, 127)
    q = (
        (np.rint(_divide(sub, (d * sc)[:, :, None])).clip(-32, 31) + 32)
        .astype(np.uint8)
        .reshape(-1, 2, 4, 32)
    )
    ql = np.concatenate(
        [
            (q[:, :, 0] & 15) | ((q[:, :, 2] & 15) << 4),
            (q[:, :, 1] & 15) | ((q[:, :, 3] & 15) << 4),
        ],
        axis=2,
    ).reshape(-1, 128)
    qh = (
        (q[:, :, 0] >> 4)
        | ((q[:, :, 1] >> 4) << 2)
        | ((q[:, :, 2] >> 4) << 4)
        | ((q[:, :, 3] >> 4) << 6)
    )
    return np.concatenate(
        [ql, qh.reshape(-1, 64), sc.astype(np.int8).view(np.uint8), d_bytes], axis=1
    )


def _dequantise_q6_k(b):
    ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 32)
    q = np.stack(
        [
            (ql[:, :, 0] & 15) | ((qh & 3) << 4),
            (ql[:, :, 1] & 15) | (((qh >> 2) & 3) << 4),
            (ql[:, :, 0] >> 4) | (((qh >> 4) & 3) << 4),
            (ql[:, :, 1] >> 4) | ((qh >> 6) << 4),
        ],
        axis=2,
    )
    q = q.reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    scale = _read_f16(b[:, 208:210]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[:, :, None] * q).reshape(-1, 256)


def _quantise_iq4_nl(x):
    d_bytes, d = _f16(_signed_extreme(x) / np.float32(-127))
    middles = (IQ4_TABLE[1:] + IQ4_TABLE[:-1]) / 2
    return np.concatenate([d_bytes, _nibbles(np.searchsorted(middles, _divide(x, d)))], axis=1)


def _quantise_mxfp4(x):
    """Block exponent floor(log2(amax)) - 2, then the nearest E2M1 value (lower code on ties)."""
    amax = np.abs(x).max(axis=1, keepdims=True)
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1 - 2 + 127, 0).clip(0, 254)
    scaled = np.abs(x.astype(np.float64)) * np.ldexp(1.0, 127 - exponent)
    code = np.searchsorted((E2M1[1:] + E2M1[:-1]) / 2.0, scaled, side="left").astype(np.uint8)
    code |= np.where((x < 0) & (code > 0), 8, 0).astype(np.uint8)
    return np.concatenate([exponent.astype(np.uint8), _nibbles(code)], axis=1)


def _dequantise_mxfp4(b):
    q = _unnibble(b[:, 1:])
    value = np.where(q & 8, -E2M1[q & 7], E2M1[q & 7])
    return (value * np.ldexp(1.0, b[:, :1].astype(np.int64) - 127)).astype(np.float32)


def quantise(x, kind):
    """x [..., columns] f32 -> uint8 [rows, row_bytes]; columns must be a multiple of the block."""
    columns = x.shape[-1]
    size = BLOCK[kind][1]
    if columns % size:
        raise ValueError(f"{kind} needs rows of a multiple of {size} values, not {columns}")
    flat = np.ascontiguousarray(x, np.float32).reshape(-1, size)
    if kind in ("Q4_K", "Q5_K"):
        blocks = _quantise_k(flat, 16 if kind == "Q4_K" else 32)
    elif kind == "Q6_K":
        blocks = _quantise_q6_k(flat)
    elif kind == "IQ4_NL":
        blocks = _quantise_iq4_nl(flat)
    elif kind == "MXFP4":
        blocks = _quantise_mxfp4(flat)
    else:
        blocks = _quantise_legacy(flat, kind)
    return blocks.reshape(-1, columns // size * BLOCK[kind][2])


def dequantise(data, kind, columns):
    """uint8 [rows, row_bytes] -> f32 [rows, columns]."""
    b = np.ascontiguousarray(data).reshape(-1, BLOCK[kind][2])
    if kind in ("Q4_K", "Q5_K"):
        x = _dequantise_k(b, 16 if kind == "Q4_K" else 32)
    elif kind == "Q6_K":
        x = _dequantise_q6_k(b)
    elif kind == "IQ4_NL":
        x = _read_f16(b[:, :2]) * IQ4_TABLE[_unnibble(b[:, 2:])]
    elif kind == "MXFP4":
        x = _dequantise_mxfp4(b)
    else:
        x = _dequantise_legacy(b, kind)
    return x.astype(np.float32).reshape(-1, columns)
