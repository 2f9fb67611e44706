"""Draws random weight blocks straight in their quantised form.

What: for each type a pool of random blocks whose decoded values have mean 0 and a wanted standard
      deviation; tensors are cut from pools at random offsets, so writing is bound by the disk.
Why here: drawing and quantising billions of floats would take an hour; drawing blocks takes seconds.
Must not know: tensor names or model shapes.

A pool holds a prime number of blocks, so that rows (whose block counts have small factors) never
start at the same pool block twice in a row and no two rows of a matrix are equal.

Zero mean matters: with q - 8 drawn from 0..15 every weight would lean to -0.5, hidden states would
share a direction, and the router would send all tokens to the same experts.
"""

import numpy as np

TYPE_IDS = {"F32": 0, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
BLOCK = {"F32": (1, 4), "Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}
# Primes near 24 MiB of blocks, more than a last-level cache slice keeps.
_POOL_BLOCKS = {"Q4_0": 1398107, "Q8_0": 740171, "Q4_K": 174763, "Q6_K": 119839}


def _gauss_codes(rng, shape, centre, spread, low, high):
    """Integers round(centre + spread * N(0,1)) clipped to low..high, as uint8 (or int8 if low < 0)."""
    draw = rng.standard_normal(shape, dtype=np.float32)
    draw *= spread
    draw += centre
    np.rint(draw, out=draw)
    np.clip(draw, low, high, out=draw)
    return draw.astype(np.int8 if low < 0 else np.uint8)


def _half_bytes(values):
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8).reshape(len(values), 2)


def _scales(rng, n, unit):
    """n block scales: unit, jittered by +-20 %, with random sign."""
    return (unit * rng.uniform(0.8, 1.2, n) * rng.choice([-1.0, 1.0], n)).astype(np.float32)


def _draw_q4_0(rng, n, std):
    codes = _gauss_codes(rng, (n, 32), 7.5, 3.0, 0, 15)
    d = _scales(rng, n, std / 3.03)
    return np.hstack([_half_bytes(d), codes[:, :16] | (codes[:, 16:] << 4)])


def _draw_q8_0(rng, n, std):
    codes = _gauss_codes(rng, (n, 32), 0.0, 42.0, -127, 127)
    d = _scales(rng, n, std / 42.4)
    return np.hstack([_half_bytes(d), codes.view(np.uint8)])


def _pack_k_scales(scale, low):
    """Packs 8 six-bit scales and 8 six-bit minima per block into the 12 bytes of Q4_K."""
    out = np.zeros((len(scale), 12), np.uint8)
    out[:, 0:4] = (scale[:, :4] & 63) | ((scale[:, 4:] >> 4) << 6)
    out[:, 4:8] = (low[:, :4] & 63) | ((low[:, 4:] >> 4) << 6)
    out[:, 8:12] = (scale[:, 4:] & 15) | ((low[:, 4:] & 15) << 4)
    return out


def _draw_q4_k(rng, n, std):
    codes = _gauss_codes(rng, (n, 256), 7.5, 3.0, 0, 15)
    scale = rng.integers(32, 64, (n, 8), dtype=np.uint8)
    d = np.abs(_scales(rng, n, std / (3.03 * 48.4)))
    # x = d * scale * code - dmin * min; min = scale and dmin = 7.5 d centre it.
    head = np.hstack([_half_bytes(d), _half_bytes(7.5 * d), _pack_k_scales(scale, scale)])
    pairs = codes.reshape(n, 4, 2, 32)
    return np.hstack([head, (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(n, 128)])


def _draw_q6_k(rng, n, std):
    body = rng.integers(0, 256, (n, 192), dtype=np.uint8)
    scale = rng.integers(20, 64, (n, 16), dtype=np.int8)
    scale *= rng.choice(np.array([-1, 1], np.int8), (n, 16))
    d = np.abs(_scales(rng, n, std / (18.5 * 43.5)))
    return np.hstack([body, scale.view(np.uint8), _half_bytes(d)])


_DRAW = {"Q4_0": _draw_q4_0, "Q8_0": _draw_q8_0, "Q4_K": _draw_q4_k, "Q6_K": _draw_q6_k}


def decode(kind, raw):
    """Decodes blocks [n, block bytes] uint8 to [n, block elements] f32 (for checks only)."""
    half = lambda at: raw[:, at : at + 2].copy().view("<f2").astype(np.float32)
    if kind == "Q4_0":
        q = raw[:, 2:]
        return half(0) * (np.hstack([q & 15, q >> 4]).astype(np.float32) - 8)
    if kind == "Q8_0":
        return half(0) * raw[:, 2:].copy().view(np.int8).astype(np.float32)
    if kind == "Q4_K":
        b = raw[:, 4:16]
        high = b[:, 0:8] >> 6
        scale = np.hstack([b[:, :4] & 63, (b[:, 8:] & 15) | (high[:, :4] << 4)])
        low = np.hstack([b[:, 4:8] & 63, (b[:, 8:] >> 4) | (high[:, 4:] << 4)])
        q = raw[:, 16:].reshape(-1, 4, 1, 32)
        codes = np.concatenate([q & 15, q >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)
        out = (half(0) * scale)[:, :, None] * codes - (half(2) * low)[:, :, None]
        return out.reshape(-1, 256)
    if kind == "Q6_K":
        ql = raw[:, :128].reshape(-1, 2, 1, 64)
        ql = np.concatenate([ql & 15, ql >> 4], axis=2).reshape(-1, 2, 4, 32)
        qh = raw[:, 128:192].reshape(-1, 2, 1, 32)
        qh = np.concatenate([(qh >> s) & 3 for s in (0, 2, 4, 6)], axis=2)
        codes = (ql | (qh << 4)).astype(np.float32).reshape(-1, 16, 16) - 32
        scale = raw[:, 192:208].copy().view(np.int8).astype(np.float32)
        return (half(208) * scale)[:, :, None].repeat(16, 2).reshape(-1, 256) * codes.reshape(-1, 256)
    raise ValueError(f"no decoder for {kind}")


class Pools:
    """Random blocks by (type, standard deviation), drawn when first asked for."""

    def __init__(self, rng):
        self.rng = rng
        self.unit = {}
        self.report = []

    def _pool(self, kind, std):
        if (kind, std) not in self.unit:
            raw = _DRAW[kind](self.rng, _POOL_BLOCKS[kind], std)
            seen = decode(kind, raw[:4096])
            self.report.append((kind, std, float(seen.mean()), float(seen.std())))
            if abs(seen.std() / std - 1) > 0.05 or abs(seen.mean()) > 0.02 * std:
                raise RuntimeError(f"{kind}: drew mean {seen.mean():g}, std {seen.std():g}; "
                                   f"wanted 0 and {std:g}")
            self.unit[kind, std] = np.ascontiguousarray(raw).reshape(-1)
        return self.unit[kind, std]

    def write(self, out, kind, n_elements, std):
        """Writes n_elements weights of a type to a binary file, cut from the pool at random."""
        per_block, block_bytes = BLOCK[kind]
        if n_elements % per_block:
            raise ValueError(f"{n_elements} elements are no whole number of {kind} blocks")
        if kind == "F32":
            draw = self.rng.standard_normal(n_elements, dtype=np.float32) * np.float32(std)
            out.write(draw.astype("<f4").tobytes())
            return
        pool = memoryview(self._pool(kind, std))
        left = n_elements // per_block * block_bytes
        at = int(self.rng.integers(0, len(pool) // block_bytes)) * block_bytes
        while left > 0:
            n = min(left, len(pool) - at)
            out.write(pool[at : at + n])
            left -= n
            at = 0
