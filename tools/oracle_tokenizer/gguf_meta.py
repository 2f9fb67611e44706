"""Writes a GGUF file with metadata only: a tokenizer as converters write it."""

import struct

_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5


def _string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
    code, kind = ("f", _F32) if value and isinstance(value[0], float) else ("i", _I32)
    return struct.pack(f"<IIQ{len(value)}{code}", _ARRAY, kind, len(value), *value)


def write(path, keys):
    """keys: name -> bool, int (u32), str, or list of str, float or int."""
    keys = {"general.architecture": "qwen3moe", "general.name": "metadata only", **keys}
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys))
    for name, value in keys.items():
        data += _string(name) + _value(value)
    path.write_bytes(data)


def from_document(doc, pre, bos=None):
    """Keys of a byte-level BPE tokenizer.json."""
    model = doc["model"]
    n = max([*model["vocab"].values(), *(t["id"] for t in doc["added_tokens"])]) + 1
    tokens = [f"[PAD{i}]" for i in range(n)]
    types = [5] * n
    for text, i in model["vocab"].items():
        tokens[i], types[i] = text, 1
    for token in doc["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer.ggml.add_bos_token": bos is not None,
    }
    if bos is not None:
        keys["tokenizer.ggml.bos_token_id"] = bos
    return keys


def from_pieces(pieces, bos):
    """Keys of a SentencePiece model: (text, score, type) by id."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p[0] for p in pieces],
        "tokenizer.ggml.scores": [float(p[1]) for p in pieces],
        "tokenizer.ggml.token_type": [p[2] for p in pieces],
        "tokenizer.ggml.bos_token_id": bos,
        "tokenizer.ggml.add_bos_token": True,
    }
