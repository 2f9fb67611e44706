#!/usr/bin/env python3
"""Write a training checkpoint as a Hugging Face Qwen3-MoE model in bf16.

What: model.safetensors in the architecture's original layout (one tensor per expert projection),
config.json and generation_config.json.
Why here: transformers 5 fuses experts when it saves; readers of the original layout must not depend
on that.
Must not know: how the weights came to be.
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file


def hf_tensors(state, cfg):
    """Rename and split a Model state dict; returns name -> contiguous bf16 tensor."""
    out = {}
    inner = cfg["moe_intermediate_size"]
    for name, value in state.items():
        value = value.to(torch.bfloat16)
        if name.endswith("mlp.gate_up"):
            base = "model." + name[: -len("gate_up")] + "experts."
            for e in range(cfg["num_experts"]):
                out[f"{base}{e}.gate_proj.weight"] = value[e, :inner].contiguous()
                out[f"{base}{e}.up_proj.weight"] = value[e, inner:].contiguous()
        elif name.endswith("mlp.down"):
            base = "model." + name[: -len("down")] + "experts."
            for e in range(cfg["num_experts"]):
                out[f"{base}{e}.down_proj.weight"] = value[e].contiguous()
        else:
            out["model." + name] = value.contiguous()
    return out


def hf_config(cfg, eot, eos):
    """config.json of Qwen3MoeForCausalLM."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": eot, "decoder_sparse_step": 1,
        "eos_token_id": eos, "head_dim": cfg["head_dim"], "hidden_act": "silu",
        "hidden_size": cfg["hidden_size"], "initializer_range": 0.02,
        "intermediate_size": 512, "max_position_embeddings": cfg["max_position_embeddings"],
        "max_window_layers": cfg["num_hidden_layers"], "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": cfg["moe_intermediate_size"],
        "norm_topk_prob": True, "num_attention_heads": cfg["num_attention_heads"],
        "num_experts": cfg["num_experts"], "num_experts_per_tok": cfg["num_experts_per_tok"],
        "num_hidden_layers": cfg["num_hidden_layers"],
        "num_key_value_heads": cfg["num_key_value_heads"], "output_router_logits": False,
        "rms_norm_eps": cfg["rms_norm_eps"], "rope_scaling": None,
        "rope_theta": cfg["rope_theta"], "router_aux_loss_coef": 0.01, "sliding_window": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": cfg["vocab_size"],
    }


def write_json(path, value):
    """Pretty JSON with a final newline."""
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def main():
    """Export one checkpoint."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--out", required=True, help="model directory; needs tokenizer.json there")
    args = ap.parse_args()
    saved = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    with open(os.path.join(args.out, "tokenizer.json"), encoding="utf-8") as f:
        ids = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    eot, end = ids["<|endoftext|>"], ids["<|im_end|>"]
    tensors = hf_tensors(saved["model"], saved["config"])
    path = os.path.join(args.out, "model.safetensors")
    save_file(tensors, path + ".tmp", metadata={"format": "pt"})
    os.replace(path + ".tmp", path)
    write_json(os.path.join(args.out, "config.json"), hf_config(saved["config"], eot, eot))
    write_json(os.path.join(args.out, "generation_config.json"),
               {"bos_token_id": eot, "eos_token_id": [end, eot], "pad_token_id": eot,
                "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9,
                "repetition_penalty": 1.0})
    print(json.dumps({"tensors": len(tensors), "bytes": os.path.getsize(path), **saved["info"]}))


if __name__ == "__main__":
    main()
