#!/usr/bin/env python3
"""Writes the seed corpora of the file fuzzers, tests/fuzz/corpus/{gguf,gguf_tokenizer,
safetensors}/.

Seeds are small: a good file, one file per shape that broke a published parser (counts that wrap,
string length 2^63, alignment 0, 9 dimensions, a zero dimension, a token array of INT8, nested
arrays, an empty key, ...), and what our fuzzers have found, which stays in found-*. Needs no
packages. Run from anywhere; it replaces all files but found-*.
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "corpus"

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMAT = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q",
          I64: "q", F64: "d"}


def string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(t, v):
    return string(v) if t == STRING else struct.pack("<" + FORMAT[t], v)


def key(name, t, v):
    return string(name) + struct.pack("<I", t) + value(t, v)


def array(name, t, values, count=None):
    head = string(name) + struct.pack("<IIQ", ARRAY, t, len(values) if count is None else count)
    return head + b"".join(value(t, v) for v in values)


def tensor(name, dims, t, offset, n_dims=None):
    n = len(dims) if n_dims is None else n_dims
    return (string(name) + struct.pack("<I", n) + struct.pack(f"<{len(dims)}Q", *dims)
            + struct.pack("<IQ", t, offset))


KEYS = [key("general.architecture", STRING, "qwen3moe")]
TENSORS = [tensor("a", [32, 2], 0, 0), tensor("b", [64, 3], 8, 256)]


def gguf(keys=None, tensors=None, version=3, n_keys=None, n_tensors=None, data=460, align=32,
         magic=b"GGUF"):
    keys = KEYS if keys is None else keys
    tensors = TENSORS if tensors is None else tensors
    b = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                            len(keys) if n_keys is None else n_keys)
    b += b"".join(keys) + b"".join(tensors)
    return b + bytes(-len(b) % align) + bytes(i & 255 for i in range(data))


def gguf_seeds():
    every = [key(f"k{t}", t, 1) for t in FORMAT] + [array(f"a{t}", t, [1, 0, 1]) for t in FORMAT]
    tokens = array("tokenizer.ggml.tokens", STRING, ["<s>", "", "\u00e9", "ab"])
    big = 1 << 63
    return {
        "good": gguf(),
        "good-v2": gguf(version=2),
        "good-every-type": gguf(KEYS + every + [tokens]),
        "good-types": gguf(tensors=[tensor("q4k", [256], 12, 0), tensor("q6k", [256], 14, 160),
                                    tensor("mx", [32, 1, 2, 1], 39, 384)], data=384 + 34),
        "good-alignment": gguf(KEYS + [key("general.alignment", U32, 64)], align=64),
        "good-split": gguf(KEYS + [key("split.no", U16, 0), key("split.count", U16, 1),
                                   key("split.tensors.count", I32, 2)]),
        "good-empty": gguf([], [], data=0),
        "magic": gguf(magic=b"GGML"),
        "version-1": gguf(version=1),
        "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "n-tensors-wraps": gguf(n_tensors=2**64 - 1),
        "n-tensors-times-size-wraps": gguf(n_tensors=2**64 // 40 + 2),
        "n-keys-wraps": gguf(n_keys=2**61),
        "n-keys-beyond": gguf(n_keys=60000),
        "key-empty": gguf([key("", U8, 1)]),
        "key-length-plus-1-wraps": gguf([struct.pack("<Q", 2**64 - 1) + bytes(40)]),
        "key-twice": gguf(KEYS + KEYS),
        "key-control": gguf([key("a\x1b[2Jb\n", U8, 1)]),
        "string-length-2-63": gguf([string("k") + struct.pack("<IQ", STRING, big)]),
        "string-beyond": gguf([string("k") + struct.pack("<IQ", STRING, 1 << 20)]),
        "type-13": gguf([string("k") + struct.pack("<IQ", 13, 0)]),
        "bool-2": gguf([key("k", BOOL, 2)]),
        "array-count-wraps": gguf([array("k", U64, [], 2**61)]),
        "array-strings-wrap": gguf([array("k", STRING, [], 2**60 + 1)]),
        "array-beyond": gguf([array("k", U32, [], 1 << 20)]),
        "array-nested": gguf([string("k") + struct.pack("<IIQIQ", ARRAY, ARRAY, 1, ARRAY, 1)]),
        "array-nested-deep": gguf([string("k") + struct.pack("<I", ARRAY)
                                   + struct.pack("<IQ", ARRAY, 1) * 500]),
        "tokens-int8": gguf([array("tokenizer.ggml.tokens", I8, [1, 2, 3]),
                             array("tokenizer.ggml.scores", I8, [1, 2, 3]),
                             array("tokenizer.ggml.token_type", I8, [1, 2, 3])]),
        "token-long": gguf([array("tokenizer.ggml.tokens", STRING, [b"x" * 3000])]),
        "alignment-0": gguf([key("general.alignment", U32, 0)]),
        "alignment-3": gguf([key("general.alignment", U32, 3)]),
        "alignment-2-31": gguf([key("general.alignment", U32, 2**31)]),
        "alignment-string": gguf([key("general.alignment", STRING, "32")]),
        "block-count-0": gguf(KEYS + [key("qwen3moe.block_count", U32, 0),
                                      key("qwen3moe.attention.head_count", U32, 0)]),
        "n-dims-0": gguf(tensors=[tensor("a", [], 0, 0)]),
        "n-dims-9": gguf(tensors=[tensor("a", [1] * 9, 0, 0)]),
        "n-dims-2-32": gguf(tensors=[tensor("a", [1], 0, 0, n_dims=2**32 - 1)]),
        "dim-0": gguf(tensors=[tensor("a", [32, 0], 0, 0)]),
        "dim-negative": gguf(tensors=[tensor("a", [2**64 - 32, 2], 0, 0)]),
        "dims-wrap": gguf(tensors=[tensor("a", [2**32, 2**32, 2], 0, 0)]),
        "bytes-wrap": gguf(tensors=[tensor("a", [2**62], 0, 0)]),
        "sum-wraps": gguf(tensors=[tensor("a", [2**60], 0, 0),
                                   tensor("b", [2**60], 0, 2**62)]),
        "pad-wraps": gguf(tensors=[tensor("a", [8], 0, 2**64 - 1)]),
        "block-splits": gguf(tensors=[tensor("a", [33], 8, 0)]),
        "type-q2k": gguf(tensors=[tensor("a", [256], 10, 0)]),
        "type-2-32": gguf(tensors=[tensor("a", [32], 2**32 - 1, 0)]),
        "offset-overlap": gguf(tensors=[TENSORS[0], tensor("b", [64, 3], 8, 0)]),
        "offset-gap": gguf(tensors=[TENSORS[0], tensor("b", [64, 3], 8, 288)], data=600),
        "tensor-twice": gguf(tensors=[TENSORS[0], tensor("a", [64, 3], 8, 256)]),
        "tensor-no-name": gguf(tensors=[tensor("", [32], 0, 0)]),
        "truncated-data": gguf(data=459),
        "truncated-header": gguf()[:90],
    }


def ranked(pre="gpt-2", tokens=None, merges=("a b", "\u0120 a", "ab c"), types=None, more=()):
    """A byte-level tokenizer in metadata alone; the fuzzer encodes the key "text"."""
    if tokens is None:
        tokens = [*"abc12<>|_\u0120\u00c3\u00a9", "ab", "\u0120a", "abc", "<|im_end|>", "<s>"]
    if types is None:
        types = [3 if t in ("<s>", "<|im_end|>") else 1 for t in tokens]
    keys = [key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, pre),
            array("tokenizer.ggml.tokens", STRING, tokens),
            array("tokenizer.ggml.token_type", I32, types),
            array("tokenizer.ggml.merges", STRING, merges), *more,
            key("text", STRING, "abc <s>12\u00e9ab\n  a<|im_end|>")]
    return gguf(keys, [], data=0)


def scored(tokens=("<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\u2581", "a", "b", "\u2581a", "ab"),
           types=(2, 3, 3, 6, 6, 1, 1, 1, 1, 4), scores=(0, 0, 0, 0, 0, -4, -5, -6, -1, -2), more=()):
    keys = [key("tokenizer.ggml.model", STRING, "llama"),
            array("tokenizer.ggml.tokens", STRING, tokens),
            array("tokenizer.ggml.token_type", I32, types),
            array("tokenizer.ggml.scores", F32, scores), *more,
            key("text", STRING, "ab a<s>b\u00e9 </s>")]
    return gguf(keys, [], data=0)


def gguf_tokenizer_seeds():
    roles = [key("tokenizer.ggml.bos_token_id", U32, 1), key("tokenizer.ggml.eos_token_id", U32, 2),
             key("tokenizer.ggml.add_bos_token", BOOL, 1), key("tokenizer.ggml.add_eos_token", BOOL, 1),
             key("tokenizer.ggml.eot_token_id", U32, 3), key("tokenizer.ggml.eom_token_id", U32, 4),
             key("tokenizer.chat_template", STRING, "{{ messages }}")]
    seeds = {f"ranked-{pre}": ranked(pre) for pre in
             ("gpt-2", "qwen2", "qwen35", "refact", "llama-bpe", "gpt-4o", "tekken", "deepseek-v3",
              "deepseek-llm")}
    seeds.update({
        "ranked-roles": ranked(more=roles),
        "ranked-no-alphabet": ranked(tokens=["a", "b", "ab"], merges=["a b"]),
        "ranked-empty-token": ranked(tokens=["", "a", "a", "\u4e00"], merges=[]),
        "ranked-unknown": ranked("no-such\nfamily"),
        "ranked-merge-lost": ranked(merges=["a z"]),
        "ranked-merge-cut": ranked(merges=["a ", " b", "ab"]),
        "ranked-not-utf8": ranked(tokens=[b"\xff", b"\xc3"], merges=[]),
        "ranked-few-types": ranked(types=[1, 2]),
        "ranked-wild-types": ranked(types=[-1, 0, 2**31 - 1, 6, 5, 4, 3, 2, 1] + [1] * 8),
        "scored": scored(),
        "scored-roles": scored(more=roles),
        "scored-no-prefix": scored(more=[key("tokenizer.ggml.add_space_prefix", BOOL, 0)]),
        "scored-nan": scored(scores=[float("nan")] * 10),
        "scored-infinite": scored(scores=[float("inf"), float("-inf")] * 5),
        "scored-few": scored(scores=[1.0]),
        "scored-equal": scored(scores=[0.0] * 10),
        "id-beyond": scored(more=[key("tokenizer.ggml.bos_token_id", U32, 2**32 - 1)]),
        "id-negative": scored(more=[key("tokenizer.ggml.bos_token_id", I32, -1)]),
        "tokens-empty": gguf([key("tokenizer.ggml.model", STRING, "llama"),
                              array("tokenizer.ggml.tokens", STRING, [])], [], data=0),
        "model-array": gguf([array("tokenizer.ggml.model", STRING, ["gpt2"])], [], data=0),
    })
    return seeds


def safetensors(header, n_data=0, length=None):
    b = header if isinstance(header, bytes) else header.encode()
    n = len(b) if length is None else length
    return struct.pack("<Q", n) + b + bytes(i & 255 for i in range(n_data))


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def one(n_data=4, **kwargs):
    return safetensors(json.dumps({"t": entry(**kwargs)}), n_data)


def safetensors_seeds():
    a, b = entry("F32", (2, 3), (0, 24)), entry("BF16", (), (24, 26))
    c = entry("F16", (0, 7), (24, 24))
    good = {"__metadata__": {"format": "pt"}, "a": a, "b": b, "c": c}
    big = 1 << 62
    return {
        "good": safetensors(json.dumps(good), 26),
        "good-padded": safetensors(json.dumps(good) + "   ", 26),
        "good-empty": safetensors("{}"),
        "length-0": safetensors("{}", length=0),
        "length-wraps": safetensors("{}", length=2**64 - 1),
        "length-over-limit": safetensors("{}", length=(32 << 20) + 1),
        "length-beyond": safetensors("{}", length=3),
        "not-json": safetensors("{" + "\x01" * 8),
        "not-utf8": safetensors(b'{"\xc3\x28":1}'),
        "nul-in-name": safetensors('{"a\\u0000b":{}}'),
        "escape-in-name": safetensors('{"a\\u001b[2J\\n":{}}'),
        "surrogate-in-name": safetensors('{"\\ud800":{}}'),
        "nested": safetensors('{"__metadata__":' + "[" * 3000),
        "nested-64": safetensors('{"__metadata__":' + "[" * 63 + "]" * 63 + "}"),
        "twice": safetensors('{"t":' + json.dumps(entry()) + ',"t":' + json.dumps(entry()) + "}", 4),
        "metadata-number": safetensors('{"__metadata__":{"k":1}}'),
        "dtype-i64": one(dtype="I64", n_data=8, offsets=(0, 8)),
        "dtype-f8": one(dtype="F8_E4M3", n_data=1, offsets=(0, 1)),
        "shape-5": one(shape=[1] * 5),
        "shape-negative": one(shape=[-1]),
        "shape-real": one(shape=[1.0]),
        "shape-wraps": one(shape=[2**32, 2**32], offsets=(0, 0), n_data=0),
        "bytes-wrap": one(shape=[big], offsets=(0, 0), n_data=0),
        "offsets-negative": one(offsets=(-4, 0)),
        "offsets-backwards": one(offsets=(4, 0)),
        "offsets-huge": one(offsets=(0, 2**63 - 1)),
        "offsets-too-big": one(offsets=(0, 2**64)),
        "hole": one(offsets=(4, 8), n_data=8),
        "overlap": safetensors(json.dumps({"a": a, "d": entry("F32", (1,), (20, 24))}), 24),
        "rest": one(n_data=5),
        "truncated": one(n_data=3),
    }


def main():
    for name, seeds in (("gguf", gguf_seeds()), ("gguf_tokenizer", gguf_tokenizer_seeds()),
                        ("safetensors", safetensors_seeds())):
        folder = ROOT / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if not old.name.startswith("found-"):
                old.unlink()
        for seed, data in seeds.items():
            (folder / seed).write_bytes(data)


if __name__ == "__main__":
    main()
