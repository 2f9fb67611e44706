#!/usr/bin/env python3
"""Golden vectors for src/tensor/codec.c, from the reference implementation in the `gguf` package.

What: writes tests/data/codec/: per format one file of blocks with the values that gguf decodes them
      to, one file of values to encode, and the squared error that the peers' encoders reach on it.
Why here: the formats are defined by what others write; our decoder is compared with theirs bit for
      bit, our encoder must err no more than theirs (within the margin that the test states).
Must not: be needed to build or test; the files are committed.

Needs Python packages gguf and numpy. --ggml-lib PATH (libggml-base.so of a llama.cpp build) is needed
to write errors.txt anew, as gguf has no encoder for the K types; without it errors.txt is kept.

Usage: tools/oracle_codec.py [--check] [--ggml-lib PATH]
  --check   write nothing; compare with the committed files, exit 1 on a difference
"""

import argparse
import ctypes
import hashlib
import importlib.metadata
import os
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

FORMATS = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K IQ4_NL MXFP4".split()
PLAIN = ("F32", "F16", "BF16")
# Byte offsets of the f16 scales in a block; specials are put there.
SCALES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}
# +-0, smallest and largest denormal, smallest normal, 1, 65504, infinity, NaN, and negative ones.
SPECIALS = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00]
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "tests", "data", "codec")


def blocks_of(name):
    """Blocks of one format, uint8 [n_blocks, block_bytes]: special scales, extreme codes, random bytes."""
    qtype = GGMLQuantizationType[name]
    elems, size = GGML_QUANT_SIZES[qtype]
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    n_blocks = 1024 if elems == 1 else 64 if elems == 32 else 12
    blocks = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    for i, special in enumerate(SPECIALS):
        for offset in SCALES.get(name, []):
            blocks[i, offset:offset + 2] = (special & 255, special >> 8)
    for i in range(len(SPECIALS), n_blocks):  # scales of trained weights: 2^-15 .. 1, either sign
        for offset in SCALES.get(name, []):
            blocks[i, offset + 1] &= 0xBF
    if elems > 1:
        plain = SPECIALS.index(0x3C00)  # scale 1: all codes 0, all codes 1
        keep = SCALES.get(name, [])
        for row, fill in ((plain, 0x00), (plain + 1, 0xFF)):
            scales = blocks[row].copy()
            blocks[row] = fill
            for offset in keep:
                blocks[row, offset:offset + 2] = scales[offset:offset + 2]
    if name == "MXFP4":  # every kind of exponent, but not 255: gguf reads it as 2^128, we as NaN
        blocks[:, 0] = rng.integers(100, 140, n_blocks)
        blocks[:8, 0] = (0, 1, 2, 3, 127, 252, 253, 254)
    return blocks


def decoded(name, blocks):
    """What gguf decodes the blocks to, f32 [n]."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(dequantize(blocks.reshape(-1).copy(), GGMLQuantizationType[name])).astype("<f4").ravel()


def input_values():
    """Values to encode, f32 [4096]: four distributions of 1024 each."""
    rng = np.random.default_rng(20260101)
    normal = rng.standard_normal(1024) * 0.02
    heavy = rng.standard_normal(1024) ** 3 * 0.01
    shifted = rng.standard_normal(1024) * 0.01 + 0.05
    sparse = np.where(rng.random(1024) < 0.8, 0.0, rng.standard_normal(1024))
    return np.concatenate([normal, heavy, shifted, sparse]).astype("<f4")


def peer_errors(lib_path, x):
    """Lines "FORMAT e0 e1 e2 e3": mean squared error of ggml's encoder per distribution."""
    lib = ctypes.CDLL(lib_path)
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                        ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    lines = []
    for name in FORMATS:
        if name in PLAIN:
            continue
        qtype = GGMLQuantizationType[name]
        elems, size = GGML_QUANT_SIZES[qtype]
        out = np.zeros(x.size // elems * size, dtype=np.uint8)
        lib.ggml_quantize_chunk(int(qtype), x.ctypes.data, out.ctypes.data, 0, 1, x.size, None)
        delta = decoded(name, out).astype(np.float64) - x.astype(np.float64)
        lines.append(name + "".join(f" {e:.9e}" for e in (delta.reshape(4, -1) ** 2).mean(axis=1)))
    return "\n".join(lines) + "\n"


def vector_file(name):
    """Magic, u32 elements, u32 bytes, the blocks, the f32 values; little-endian."""
    blocks = blocks_of(name)
    values = decoded(name, blocks)
    return struct.pack("<8sII", b"FCODEC1\0", values.size, blocks.size) + blocks.tobytes() + values.tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    parser.add_argument("--ggml-lib", help="libggml-base.so, to write errors.txt anew")
    args = parser.parse_args()

    files = {f"{name}.bin": vector_file(name) for name in FORMATS}
    files["input.bin"] = input_values().tobytes()
    if args.ggml_lib:
        files["errors.txt"] = peer_errors(args.ggml_lib, input_values()).encode()
    versions = f"gguf {importlib.metadata.version('gguf')}, numpy {np.__version__}"
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()
                   if name != "errors.txt")
    files["SHA256SUMS"] = sums.encode()

    bad = 0
    for name, data in files.items():
        path = os.path.join(FOLDER, name)
        if args.check:
            same = os.path.exists(path) and open(path, "rb").read() == data
            bad += not same
            if not same:
                print(f"oracle_codec: {name} differs from what {versions} gives", file=sys.stderr)
        else:
            os.makedirs(FOLDER, exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
    print(f"oracle_codec: {len(files)} files, {sum(map(len, files.values()))} bytes, {versions}: "
          + ("checked" if args.check else "written") + (f", {bad} differ" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
