#!/usr/bin/env python3
"""Writes GGUF files of real MoE shapes with random weights and near-uniform routing.

What: the shapes olmoe-1b-7b, qwen3-30b-a3b (at a chosen depth) and mixs, in Q8_0, Q4_0 or Q4_K,
      complete with a synthetic byte-level BPE vocabulary, so that any GGUF engine loads them.
Why here: speed depends on shapes, types and on which experts are touched, not on what the weights
      say; real checkpoints are tens of GB of download.
Must not know: any engine's code. Output is the format as documented, nothing else.

How routing stays near uniform in every layer (random weights easily collapse it onto a few
experts): all weights have mean exactly zero; sublayer outputs are scaled down so that the residual
stays dominated by the token's own embedding, which differs from token to token; router rows all
have the same length. Weights are drawn as quantised blocks (blocks.py).

    make_synthetic.py SHAPE QUANT [--depth full|half|quarter|N] [--out F] [--seed N] [--force]

Default output: ${FERRY_CACHE:-~/.cache/ferry}/synthetic/SHAPE[-depth]-QUANT.gguf. An existing
file is kept unless --force. Needs numpy (Debian: python3-numpy) and the file's size on disk.
"""

import argparse
import os
import struct
import sys
import time

import numpy as np

import blocks

SHAPES = {
    "olmoe-1b-7b": dict(
        arch="olmoe", layers=16, d=2048, heads=16, kv_heads=16, head_dim=128, experts=64, k=8,
        ffn=1024, vocab=50304, context=4096, rope=10000.0, eps=1e-5, qk_norm="whole", pre="olmo"),
    "qwen3-30b-a3b": dict(
        arch="qwen3moe", layers=48, d=2048, heads=32, kv_heads=4, head_dim=128, experts=128, k=8,
        ffn=768, vocab=151936, context=40960, rope=1e6, eps=1e-6, qk_norm="head", pre="qwen2"),
    "mixs": dict(
        arch="llama", layers=8, d=1024, heads=16, kv_heads=4, head_dim=64, experts=8, k=2,
        ffn=3584, vocab=32000, context=8192, rope=1e6, eps=1e-5, qk_norm=None, pre="gpt-2"),
}
QUANTS = ("Q8_0", "Q4_0", "Q4_K")
FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K": 15}
ALIGNMENT = 32
SUBLAYER_GAIN = 0.3  # RMS of what one attention or expert block adds to a residual of RMS 1
ROUTER_STD = 2.0     # standard deviation of router logits


def byte_symbols():
    """The 256 printable characters that stand for bytes in byte-level BPE vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


def vocabulary(size):
    """Returns (tokens, merges): bytes, then pairs of bytes, then pair plus byte; the last token is
    <|endoftext|>. Every token but the last is reachable by its merge."""
    base = byte_symbols()
    tokens, merges = list(base), []
    pairs = [(a, b) for a in base for b in base]
    for a, b in pairs[: size - 1 - len(tokens)]:
        tokens.append(a + b)
        merges.append(f"{a} {b}")
    left = size - 1 - len(tokens)
    for j in range(left):
        a, b = pairs[j // 256], base[j % 256]
        tokens.append("".join(a) + b)
        merges.append(f"{''.join(a)} {b}")
    return tokens + ["<|endoftext|>"], merges


class Metadata:
    """Serialises GGUF key-value pairs."""

    def __init__(self):
        self.parts, self.count = [], 0

    @staticmethod
    def text(value):
        """Length-prefixed UTF-8."""
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def _add(self, key, kind, payload):
        self.parts.append(self.text(key) + struct.pack("<I", kind) + payload)
        self.count += 1

    def u32(self, key, value):
        """Adds an unsigned 32-bit value."""
        self._add(key, 4, struct.pack("<I", value))

    def f32(self, key, value):
        """Adds a 32-bit float."""
        self._add(key, 6, struct.pack("<f", value))

    def flag(self, key, value):
        """Adds a boolean."""
        self._add(key, 7, struct.pack("<?", value))

    def string(self, key, value):
        """Adds a string."""
        self._add(key, 8, self.text(value))

    def strings(self, key, values):
        """Adds an array of strings."""
        self._add(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(self.text, values)))

    def int32s(self, key, values):
        """Adds an array of signed 32-bit values."""
        self._add(key, 9, struct.pack("<IQ", 5, len(values)) + np.asarray(values, "<i4").tobytes())


def metadata(shape, quant, name):
    """All keys that an engine needs for this shape."""
    meta, arch = Metadata(), shape["arch"]
    meta.string("general.architecture", arch)
    meta.string("general.name", name)
    meta.string("general.description", "synthetic: random weights of a real shape, for speed only")
    meta.u32("general.alignment", ALIGNMENT)
    meta.u32("general.quantization_version", 2)
    meta.u32("general.file_type", FILE_TYPES[quant])
    for key, field in (
        ("block_count", "layers"), ("context_length", "context"), ("embedding_length", "d"),
        ("feed_forward_length", "ffn"), ("expert_feed_forward_length", "ffn"),
        ("attention.head_count", "heads"), ("attention.head_count_kv", "kv_heads"),
        ("attention.key_length", "head_dim"), ("attention.value_length", "head_dim"),
        ("rope.dimension_count", "head_dim"), ("expert_count", "experts"),
        ("expert_used_count", "k"), ("vocab_size", "vocab"),
    ):
        meta.u32(f"{arch}.{key}", shape[field])
    meta.f32(f"{arch}.rope.freq_base", shape["rope"])
    meta.f32(f"{arch}.attention.layer_norm_rms_epsilon", shape["eps"])
    tokens, merges = vocabulary(shape["vocab"])
    meta.string("tokenizer.ggml.model", "gpt2")
    meta.string("tokenizer.ggml.pre", shape["pre"])
    meta.strings("tokenizer.ggml.tokens", tokens)
    meta.int32s("tokenizer.ggml.token_type", [1] * (len(tokens) - 1) + [3])
    meta.strings("tokenizer.ggml.merges", merges)
    meta.u32("tokenizer.ggml.bos_token_id", len(tokens) - 1)
    meta.u32("tokenizer.ggml.eos_token_id", len(tokens) - 1)
    meta.flag("tokenizer.ggml.add_bos_token", False)
    return meta


def tensor_list(shape, quant):
    """Returns [(name, dims fastest first, type, standard deviation or "ones")] in file order."""
    d, ffn, experts = shape["d"], shape["ffn"], shape["experts"]
    q_dim, kv_dim = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    unit = lambda fan_in: float(fan_in) ** -0.5
    # silu(g) * u of unit normals has RMS 0.6; k weighted experts add up to about that again.
    down = SUBLAYER_GAIN / 0.4 * unit(ffn)
    out = [("token_embd.weight", (d, shape["vocab"]), quant, 1.0)]
    for i in range(shape["layers"]):
        b = f"blk.{i}."
        out += [
            (b + "attn_norm.weight", (d,), "F32", "ones"),
            (b + "attn_q.weight", (d, q_dim), quant, unit(d)),
            (b + "attn_k.weight", (d, kv_dim), quant, unit(d)),
            (b + "attn_v.weight", (d, kv_dim), quant, unit(d)),
            (b + "attn_output.weight", (q_dim, d), quant, SUBLAYER_GAIN * unit(q_dim)),
        ]
        if shape["qk_norm"]:
            whole = shape["qk_norm"] == "whole"
            out += [
                (b + "attn_q_norm.weight", (q_dim if whole else shape["head_dim"],), "F32", "ones"),
                (b + "attn_k_norm.weight", (kv_dim if whole else shape["head_dim"],), "F32", "ones"),
            ]
        out += [
            (b + "ffn_norm.weight", (d,), "F32", "ones"),
            (b + "ffn_gate_inp.weight", (d, experts), "F32", "router"),
            (b + "ffn_gate_exps.weight", (d, ffn, experts), quant, unit(d)),
            (b + "ffn_up_exps.weight", (d, ffn, experts), quant, unit(d)),
            (b + "ffn_down_exps.weight", (ffn, d, experts), quant, down),
        ]
    out_quant = "Q8_0" if quant == "Q8_0" else "Q6_K"
    return out + [("output_norm.weight", (d,), "F32", "ones"),
                  ("output.weight", (d, shape["vocab"]), out_quant, 2 * unit(d))]


def router(rng, d, experts):
    """Router matrix [experts, d] f32: random directions, all rows of length ROUTER_STD."""
    rows = rng.standard_normal((experts, d), dtype=np.float32)
    rows -= rows.mean(axis=0)
    return rows * (ROUTER_STD / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def n_elements(dims):
    """Product of a shape."""
    total = 1
    for dim in dims:
        total *= dim
    return total


def n_bytes(kind, dims):
    """Bytes of a tensor in the file, without padding."""
    per_block, block_bytes = blocks.BLOCK[kind]
    if dims[0] % per_block:
        raise SystemExit(f"make_synthetic: rows of {dims[0]} do not fit {kind} blocks")
    return n_elements(dims) // per_block * block_bytes


def write_file(path, shape, quant, seed):
    """Writes the file in one pass; returns (bytes, pool report)."""
    rng = np.random.Generator(np.random.SFC64(seed))
    pools = blocks.Pools(rng)
    tensors = tensor_list(shape, quant)
    meta = metadata(shape, quant, os.path.splitext(os.path.basename(path))[0])
    infos, offset = [], 0
    pad = lambda n: -n % ALIGNMENT
    for name, dims, kind, _ in tensors:
        infos.append(Metadata.text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
                     + struct.pack("<IQ", blocks.TYPE_IDS[kind], offset))
        size = n_bytes(kind, dims)
        offset += size + pad(size)
    with open(path + ".part", "wb", buffering=0) as raw:
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), meta.count)
        head += b"".join(meta.parts) + b"".join(infos)
        raw.write(head + bytes(pad(len(head))))
        for _, dims, kind, std in tensors:
            if std == "ones":
                raw.write(np.ones(dims[0], "<f4").tobytes())
            elif std == "router":
                raw.write(router(rng, dims[0], dims[1]).astype("<f4").tobytes())
            else:
                pools.write(raw, kind, n_elements(dims), std)
            raw.write(bytes(pad(n_bytes(kind, dims))))
        total = raw.tell()
    os.replace(path + ".part", path)
    return total, pools.report


def check_first_router(path_shape, quant, seed, n_tokens=4096):
    """Routes random embeddings through a router drawn as in the file; prints how uniform it is.

    This is layer 0 without its attention, which costs nothing to check here; the whole model is
    checked by running it (tools/peers/llama.py routing, or the engine's own bench).
    """
    rng = np.random.Generator(np.random.SFC64(seed + 1))
    d, experts, k = path_shape["d"], path_shape["experts"], path_shape["k"]
    per_block = blocks.BLOCK[quant][0]
    raw = blocks._DRAW[quant](rng, n_tokens * d // per_block, 1.0)
    x = blocks.decode(quant, raw).reshape(n_tokens, d)
    x /= np.sqrt((x * x).mean(axis=1, keepdims=True))
    scores = x @ router(rng, d, experts).T
    chosen = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    load = np.bincount(chosen.ravel(), minlength=experts)
    steps = [len(np.unique(chosen[t : t + 16])) for t in range(0, n_tokens, 16)]
    cv, uniform = load.std() / load.mean(), experts * (1 - (1 - k / experts) ** 16)
    print(f"  router check: {np.mean(steps):.1f} of {experts} experts per 16 tokens "
          f"(uniform: {uniform:.1f}), coefficient of variation of load {cv:.3f}")
    if np.mean(steps) < 0.97 * uniform or cv > 0.25:
        raise SystemExit("make_synthetic: the router is not near uniform; the draw is wrong")


def pick_depth(text, full):
    """Turns full, half, quarter or a number into a layer count."""
    named = {"full": full, "half": full // 2, "quarter": full // 4}
    if text in named:
        return named[text]
    if not text.isdigit() or not 1 <= int(text) <= 512:
        raise SystemExit(f"make_synthetic: --depth {text}: want full, half, quarter or 1..512")
    return int(text)


def default_path(shape_name, depth, quant):
    """Where a file goes when --out is not given."""
    cache = os.environ.get("FERRY_CACHE") or os.path.expanduser("~/.cache/ferry")
    suffix = "" if depth == "full" else f"-{depth}"
    return os.path.join(cache, "synthetic", f"{shape_name}{suffix}-{quant}.gguf")


def main():
    """Parses the command line; see the file's head."""
    parser = argparse.ArgumentParser(prog="make_synthetic.py", description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("quant", choices=QUANTS)
    parser.add_argument("--depth", default="full")
    parser.add_argument("--out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true")
    args = parser.parse_args()
    shape = dict(SHAPES[args.shape])
    shape["layers"] = pick_depth(args.depth, shape["layers"])
    path = args.out or default_path(args.shape, args.depth, args.quant)
    if os.path.exists(path) and not args.force:
        print(f"{path}: exists, kept (--force writes it again)")
        return 0
    size = sum(n_bytes(kind, dims) for _, dims, kind, _ in tensor_list(shape, args.quant))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    free = os.statvfs(os.path.dirname(os.path.abspath(path)))
    if free.f_bavail * free.f_frsize < size * 1.02:
        raise SystemExit(f"make_synthetic: {path} needs {size / 1e9:.1f} GB, the disk has "
                         f"{free.f_bavail * free.f_frsize / 1e9:.1f} GB free")
    print(f"{path}: {shape['layers']} layers, {args.quant}, {size / 1e9:.2f} GB")
    check_first_router(shape, args.quant, args.seed)
    started = time.monotonic()
    total, report = write_file(path, shape, args.quant, args.seed)
    for kind, std, mean, seen in report:
        print(f"  {kind} weights: wanted std {std:.5f}, drew {seen:.5f}, mean {mean:+.6f}")
    elapsed = time.monotonic() - started
    print(f"  wrote {total / 1e9:.2f} GB in {elapsed:.0f} s ({total / 1e6 / elapsed:.0f} MB/s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
