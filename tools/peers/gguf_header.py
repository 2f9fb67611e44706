"""Reads a GGUF file's metadata and tensor list, and counts the bytes one token reads.

What: a small trusted-input reader (files of our own making) for benches and peer tools.
Why here: shares and limits need the file's real bytes, counted by neither engine under test.
Must not know: how any engine lays weights out in memory.
"""

import struct

# GGML type id -> (name, elements per block, bytes per block).
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 20: ("IQ4_NL", 32, 18), 30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}


def _value(f, kind):
    if kind in _SCALARS:
        code = "<" + _SCALARS[kind]
        return struct.unpack(code, f.read(struct.calcsize(code)))[0]
    if kind == 8:
        return f.read(struct.unpack("<Q", f.read(8))[0]).decode("utf-8", "replace")
    if kind == 9:
        inner, count = struct.unpack("<IQ", f.read(12))
        if inner == 8:
            for _ in range(count):
                f.seek(struct.unpack("<Q", f.read(8))[0], 1)
            return f"[{count} strings]"
        code = f"<{count}{_SCALARS[inner]}"
        return list(struct.unpack(code, f.read(struct.calcsize(code))))
    raise ValueError(f"GGUF metadata value of unknown type {kind}")


def read(path):
    """Returns {"meta": {key: value}, "tensors": [{name, shape, type, bytes}]}; shape fastest first."""
    with open(path, "rb") as f:
        magic, version, n_tensors, n_keys = struct.unpack("<4sIQQ", f.read(24))
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path}: not a GGUF v3 file")
        meta = {}
        for _ in range(n_keys):
            key = _value(f, 8)
            meta[key] = _value(f, struct.unpack("<I", f.read(4))[0])
        tensors = []
        for _ in range(n_tensors):
            name = _value(f, 8)
            n_dims = struct.unpack("<I", f.read(4))[0]
            shape = struct.unpack(f"<{n_dims}Q", f.read(8 * n_dims))
            kind, _offset = struct.unpack("<IQ", f.read(12))
            count = 1
            for dim in shape:
                count *= dim
            type_name, per_block, block_bytes = TYPES[kind]
            tensors.append({"name": name, "shape": shape, "type": type_name, "elements": count,
                            "bytes": count // per_block * block_bytes})
    return {"meta": meta, "tensors": tensors}


def traffic(header):
    """Splits the weights by how a step reads them.

    Returns bytes and elements: expert (all routed experts together), every (read each step by any
    number of tokens), output (the last matmul), and embed_row (one row of the embedding), with
    n_experts, k and the experts' quant type.
    """
    meta = header["meta"]
    arch = meta["general.architecture"]
    out = {"expert": 0, "every": 0, "output": 0, "embed_row": 0, "expert_elements": 0,
           "every_elements": 0, "output_elements": 0, "n_experts": meta[arch + ".expert_count"],
           "k": meta[arch + ".expert_used_count"], "quant": None}
    names = {t["name"] for t in header["tensors"]}
    for t in header["tensors"]:
        if "_exps." in t["name"]:
            kind, out["quant"] = "expert", t["type"]
        elif t["name"] == "token_embd.weight":
            out["embed_row"] = t["bytes"] // t["shape"][1]
            if "output.weight" in names:
                continue
            kind = "output"
        else:
            kind = "output" if t["name"] == "output.weight" else "every"
        out[kind] += t["bytes"]
        out[kind + "_elements"] += t["elements"]
    return out


def step_bytes(parts, n_tokens, experts_touched=None):
    """Weight bytes a step of n_tokens sequences must read at least once.

    experts_touched: mean distinct experts per layer; None means what uniform routing gives.
    """
    if experts_touched is None:
        share = parts["k"] / parts["n_experts"]
        experts_touched = parts["n_experts"] * (1 - (1 - share) ** n_tokens)
    return (parts["expert"] * experts_touched / parts["n_experts"] + parts["every"]
            + parts["output"] + parts["embed_row"] * n_tokens)


def prompt_macs_per_token(parts):
    """Multiply-adds per prompt token in weight matmuls (the output matmul runs once a prompt)."""
    return parts["expert_elements"] * parts["k"] / parts["n_experts"] + parts["every_elements"]
