"""Writes the seeds of tests/fuzz/fuzz_tokenizer.c: one small document per kind of pipeline, a byte 0, a text.

Usage: fuzz_seeds.py (from anywhere; found-* files stay)
"""

import json
import pathlib

import families as f

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/fuzz/corpus/tokenizer"
BYTES = f.byte_level()
VOCAB = {c: i for i, c in enumerate("abcdehlot!'\u0120\u010a\u00c3\u00a9123")}
VOCAB.update({t: len(VOCAB) + i for i, t in enumerate(["he", "ll", "hell", "hello", "\u0120t", "12"])})
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 t", ["1", "2"]]
ADDED = [f.token(40, "<|im_end|>"), f.token(41, "<t>", special=False)]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def doc(pre, normalizer=None, **model):
    return f.document(VOCAB, MERGES, pre, ADDED, normalizer, **model)


def seq(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def llama():
    vocab = {"<unk>": 0, "<s>": 1, "\u2581": 2, "a": 3, "b": 4, "\u2581a": 5, "ab": 6, "<0xC3>": 7, "<0xA9>": 8}
    normalizers = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "Strip"},
        {"type": "Lowercase"},
        {"type": "NFKD"},
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    added = [f.token(0, "<unk>"), f.token(1, "<s>", lstrip=True, rstrip=True)]
    return f.document(
        vocab, ["\u2581 a", "a b"], None, added, {"type": "Sequence", "normalizers": normalizers},
        {"type": "Sequence", "decoders": decoders}, f.bos_template("<s>", 1),
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )


def metaspace():
    step = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    added = [f.token(9, "whole", special=False, normalized=True, word=True)]
    return f.document({"\u2581": 0, "a": 1, "\u2581a": 2}, ["\u2581 a"], step, added, None, step)


def main():
    steps = [
        {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "WhitespaceSplit"},
        split("-", "MergedWithNext", False, "String"),
        split("l", "MergedWithPrevious", True),
        {"type": "Whitespace"},
    ]
    gpt2 = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
    seeds = {
        "qwen": (doc(f.pre_tokenizer(f.QWEN2), {"type": "NFC"}), "hello the<|im_end|> 12\n'Ll e\u0301 \u00e9".encode()),
        "gpt2": (doc(gpt2, ignore_merges=True), b"hello 123 <t>\xff\xe2\x82"),
        "o200k": (doc(f.pre_tokenizer(f.O200K), ignore_merges=True), b"Hello HELLOworld'll 123/\n"),
        "deepseek": (doc(f.pre_tokenizer(f.DEEPSEEK_V3)), "hello\u4f60\u597d,the 1234\u3002".encode()),
        "digits": (doc(seq(*steps, BYTES)), b"he-llo 12, a--b\xc2\xbd"),
        "spm": (llama(), "ab  a\u00e9 <s> A\u212b\ufb01z".encode()),
        "metaspace": (metaspace(), b"a a whole wholes"),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (document, text) in seeds.items():
        raw = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        (FOLDER / name).write_bytes(raw + b"\0" + text)


if __name__ == "__main__":
    main()
