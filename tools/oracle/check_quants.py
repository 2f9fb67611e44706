#!/usr/bin/env python3
"""Compares quants.py with the gguf package: decoders bit for bit, encoders bit for bit where the
package has one.

Needs the oracle's environment (setup.sh). Exit 1 on any difference.
"""

import sys

import gguf
import numpy as np

import quants


def main():
    rng = np.random.default_rng(7)
    failed = 0
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"):
        x = (rng.standard_normal((64, 512)) * rng.uniform(0.01, 3.0, (64, 1))).astype(np.float32)
        x[3] = 0.0
        x[4] = np.abs(x[4])
        ours = quants.quantise(x, kind)
        package_type = gguf.GGMLQuantizationType[kind]
        decoded = quants.dequantise(ours, kind, 512)
        theirs = gguf.quants.dequantize(ours, package_type)
        same = np.array_equal(
            decoded.view("u4"), theirs.astype(np.float32).view("u4")
        ) or np.array_equal(decoded, theirs)
        noise = rng.integers(
            0, 255, ours.shape, dtype=np.uint8
        )  # any code, not only the encoder's choice
        block = quants.BLOCK[kind][2]
        finite = noise.reshape(-1, block)
        for at in {
            "Q6_K": [209],
            "Q4_K": [1, 3],
            "Q5_K": [1, 3],
            "Q4_1": [1, 3],
            "Q5_1": [1, 3],
            "MXFP4": [],
        }.get(kind, [1]):
            finite[:, at] = 0x2C  # a finite f16 scale
        if kind == "MXFP4":
            finite[:, 0] = 100 + finite[:, 0] % 40
        same_noise = np.array_equal(
            quants.dequantise(noise, kind, 512), gguf.quants.dequantize(noise, package_type)
        )
        try:
            encoder = (
                "equal"
                if np.array_equal(gguf.quants.quantize(x, package_type), ours)
                else "DIFFERENT"
            )
        except NotImplementedError:
            encoder = "not in the package"
        error = float(np.sqrt(np.mean((decoded - x) ** 2) / np.mean(x**2)))
        print(
            f"{kind:7s} decode {'equal' if same and same_noise else 'DIFFERENT'}; encode {encoder}; "
            f"relative RMS error {error:.4f}"
        )
        failed += not (same and same_noise) or encoder == "DIFFERENT"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
