#!/usr/bin/env python3
"""Which checkpoints the oracle covers: a pairwise design over the factors that break engines, plus
quantised files.

What: pairwise_cases() and quant_cases() return case templates (config, dtype, layout, shards,
formats) without seeds.
Why here: the design is one short table that a reader can check; searching seeds and prompts is
make_cases.py's job.
Must not know: weights, prompts, expected outputs.
"""

import itertools

from weights import CLASS_NAMES

FACTORS = {
    "arch": ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"],
    "experts": [5, 8, 60, 300],
    "k": [1, 2, 8],
    "hidden": [36, 40, 52, 72],
    "heads": ["mha", "gqa"],
    "dtype": ["F32", "F16", "BF16"],
    "layout": ["original", "fused"],
    "shards": [1, 3],
    "norm": [False, True],
    "quirk": [False, True],
    "tied": [False, True],
    "theta": [10000.0, 1000000.0, 500.0],
}
# (heads, kv_heads with gqa, head_dim) per hidden size where head_dim = hidden / heads.
HEADS = {36: (6, 2, 6), 40: (4, 2, 10), 52: (2, 1, 26), 72: (6, 3, 12)}
VOCABS = {5: 97, 8: 131, 60: 211, 300: 320}
INTERS = {36: 20, 40: 23, 52: 33, 72: 48}
# Released models' own combinations, in forms that GGUF can carry, which the cover above happens to
# miss.
_COMMON = {
    "heads": "gqa",
    "quirk": False,
    "tied": False,
    "layout": "original",
    "hidden": 72,
    "k": 8,
}
EXTRA_ROWS = [
    {
        **_COMMON,
        "arch": "qwen3_moe",
        "experts": 60,
        "dtype": "F16",
        "shards": 3,
        "norm": True,
        "theta": 1000000.0,
    },
    {
        **_COMMON,
        "arch": "qwen3_moe",
        "experts": 300,
        "dtype": "BF16",
        "shards": 1,
        "norm": True,
        "theta": 500.0,
    },
    {
        **_COMMON,
        "arch": "olmoe",
        "experts": 60,
        "dtype": "F16",
        "shards": 1,
        "norm": False,
        "theta": 10000.0,
        "heads": "mha",
        "quirk": True,
    },
    {
        **_COMMON,
        "arch": "qwen2_moe",
        "experts": 60,
        "dtype": "BF16",
        "shards": 1,
        "norm": False,
        "theta": 1000000.0,
        "k": 2,
        "heads": "mha",
    },
]
QUANTS = [  # (quant type of the matrices, architecture)
    ("Q8_0", "qwen3_moe"),
    ("Q4_0", "olmoe"),
    ("Q4_1", "qwen2_moe"),
    ("Q5_0", "mixtral"),
    ("Q5_1", "granitemoe"),
    ("Q4_K", "qwen3_moe"),
    ("Q5_K", "mixtral"),
    ("Q6_K", "olmoe"),
    ("IQ4_NL", "qwen2_moe"),
    ("MXFP4", "granitemoe"),
]


def valid(row):
    """k <= experts; wide choices (8 of 60 or 300) need a wide hidden size to have router gaps at
    all."""
    r = dict(row)
    if "k" in r and "experts" in r and r["k"] > r["experts"]:
        return False
    if r.get("k") == 8 and r.get("experts", 0) >= 60 and r.get("hidden", 72) < 52:
        return False
    if r.get("arch") == "mixtral" and r.get("norm") is False:
        return False  # always renormalised, no such key
    if r.get("arch") == "granitemoe" and r.get("norm") is False:
        return False  # softmax over the selected logits, no such key
    return True


def pairwise_rows():
    """Greedy all-pairs cover: every valid pair of factor values occurs in some row.
    Deterministic."""
    names = list(FACTORS)
    todo = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in FACTORS[a]
        for y in FACTORS[b]
        if valid([(a, x), (b, y)])
    }
    rows = []
    while todo:
        row = list(min(todo, key=lambda p: [(names.index(n), FACTORS[n].index(v)) for n, v in p]))
        for name in names:
            if name in dict(row):
                continue
            options = [v for v in FACTORS[name] if completable(row + [(name, v)])]
            gains = [
                sum(1 for pair in _pairs_with(row, (name, v), names) if pair in todo)
                for v in options
            ]
            offset = len(rows) % len(options)  # rotate ties so that no value is preferred for ever
            best = max(
                range(len(options)), key=lambda i: (gains[i], -((i - offset) % len(options)))
            )
            row.append((name, options[best]))
        full = dict(row)
        rows.append(full)
        todo -= {((a, full[a]), (b, full[b])) for a, b in itertools.combinations(names, 2)}
    return rows


def completable(row):
    """Whether the factors that valid() looks at can still be filled in."""
    have = dict(row)
    open_names = [n for n in ("arch", "experts", "k", "hidden", "norm") if n not in have]
    return any(
        valid(row + list(zip(open_names, values)))
        for values in itertools.product(*(FACTORS[n] for n in open_names))
    )


def _pairs_with(row, item, names):
    for other in row:
        yield tuple(sorted((other, item), key=lambda p: names.index(p[0])))


def base_config(arch, r, index):
    """The Hugging Face config dict of one row; odd rows name rope_theta the old way, even rows the
    v5 way."""
    heads, kv, head_dim = HEADS[r["hidden"]]
    config = {
        "architectures": [CLASS_NAMES[arch]],
        "model_type": arch,
        "vocab_size": VOCABS[r["experts"]],
        "hidden_size": r["hidden"],
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if r["heads"] == "mha" else kv,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "num_experts_per_tok": r["k"],
        "tie_word_embeddings": r["tied"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rms_norm_eps": 1e-5 if arch in ("mixtral", "olmoe") else 1e-6,
    }
    inter = INTERS[r["hidden"]]
    if arch in ("mixtral", "granitemoe"):
        config.update(num_local_experts=r["experts"], intermediate_size=inter)
    elif arch == "olmoe":
        config.update(num_experts=r["experts"], intermediate_size=inter, norm_topk_prob=r["norm"])
    else:
        config.update(
            num_experts=r["experts"],
            intermediate_size=2 * inter + 1,
            moe_intermediate_size=inter,
            norm_topk_prob=r["norm"],
        )
    if index % 2:
        config["rope_theta"] = r["theta"]
    else:
        config["rope_parameters"] = {"rope_theta": r["theta"], "rope_type": "default"}
    return config


def apply_quirk(arch, config, on):
    """What each architecture can do beyond the common block; `on` picks the rarer form."""
    if arch == "mixtral":
        config["sliding_window"] = 21 if on else None
        if on:
            config["head_dim"] = 10  # != hidden / heads
    elif arch == "qwen2_moe":
        config["shared_expert_intermediate_size"] = 29 if on else 40
        config["qkv_bias"] = True
        if on:
            config.update(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1])
    elif arch == "qwen3_moe":
        config["head_dim"] = 16
        if on:
            config.update(
                hidden_size=config["hidden_size"] + 1,
                num_hidden_layers=3,
                mlp_only_layers=[0],
                moe_intermediate_size=config["moe_intermediate_size"] | 1,
            )
    elif arch == "olmoe":
        config["clip_qkv"] = 0.9 if on else None
    else:
        config.update(
            embedding_multiplier=3.0 if on else 1.0,
            residual_multiplier=0.5 if on else 1.0,
            attention_multiplier=0.2 if on else 0.35,
            logits_scaling=4.0 if on else 1.0,
        )


def gguf_formats(arch, config):
    """GGUF forms that can carry this config: common converters store neither norm_topk_prob nor
    dense layers."""
    if arch == "qwen2_moe" and (config["norm_topk_prob"] or config.get("mlp_only_layers")):
        return []
    if arch == "qwen3_moe" and (not config["norm_topk_prob"] or config.get("mlp_only_layers")):
        return []
    if arch == "olmoe" and config["norm_topk_prob"]:
        return []
    return ["gguf"]


def pairwise_cases():
    """The pairwise rows, then EXTRA_ROWS; names count per architecture."""
    cases, per_arch = [], {}
    for index, r in enumerate(pairwise_rows() + EXTRA_ROWS):
        arch = r["arch"]
        config = base_config(arch, r, index)
        apply_quirk(arch, config, r["quirk"])
        formats = ["safetensors"] + gguf_formats(arch, config)
        number = per_arch[arch] = per_arch.get(arch, 0) + 1
        if "gguf" in formats and r["shards"] > 1:
            formats.append("gguf-split")
        if arch == "mixtral" and r["experts"] == 8:
            formats.append("gguf-legacy")
        sizes = f"e{r['experts']}k{r['k']}h{config['hidden_size']}"
        name = f"{arch}-{number:02d}-{sizes}-{r['dtype'].lower()}"
        cases.append(
            {
                "name": name,
                "kind": "float",
                "dtype": r["dtype"],
                "layout": r["layout"],
                "shards": r["shards"],
                "formats": formats,
                "config": config,
            }
        )
    return cases


def quant_cases():
    """One GGUF per quantised type; hidden and inner sizes are multiples of 256 so that K types
    fit."""
    cases = []
    for index, (quant, arch) in enumerate(QUANTS):
        k_type = quant.endswith("_K")
        hidden = 256 if k_type else 96
        row = {
            "hidden": 72,
            "experts": 8,
            "heads": "gqa",
            "k": 2,
            "tied": False,
            "norm": arch == "qwen3_moe",
            "theta": 10000.0,
        }
        config = base_config(arch, row, index)
        apply_quirk(arch, config, False)
        config.update(
            hidden_size=hidden,
            num_attention_heads=8 if k_type else 6,
            num_key_value_heads=4 if k_type else 3,
        )
        inter = 256 if k_type else 64
        config["intermediate_size"] = inter
        if "moe_intermediate_size" in config:
            config["moe_intermediate_size"] = inter
        if "shared_expert_intermediate_size" in config:
            config["shared_expert_intermediate_size"] = 2 * inter
        if "head_dim" in config:
            config["head_dim"] = 32
        cases.append(
            {
                "name": f"quant-{quant.lower()}-{arch}",
                "kind": "quant",
                "quant": quant,
                "dtype": "F32",
                "layout": "original",
                "shards": 1,
                "formats": ["gguf"],
                "config": config,
            }
        )
    return cases


if __name__ == "__main__":
    for case in pairwise_cases() + quant_cases():
        print(case["name"], case["layout"], case["shards"], ",".join(case["formats"]))
