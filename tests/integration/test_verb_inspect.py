#!/usr/bin/env python3
"""ferry inspect: facts about a checkpoint, for people and machines, for both file formats."""

import hashlib
import os

import numpy as np

import cli
import weights


class Inspect(cli.Case):
    def test_json(self):
        for arch in cli.ARCHS:
            for form in ("safetensors", "gguf"):
                value = self.good("inspect", cli.model(arch, form), "--json", "--tensors").json()
                self.fits(value, "inspect")
                self.assertEqual((value["architecture"], value["format"]), (arch, form))
                self.assertEqual((value["n_layers"], value["n_experts"], value["top_k"]), (2, 6, 2))
                self.assertEqual((value["hidden"], value["n_vocab"]), (64, 160))
                self.assertEqual(value["renormalise"], arch in ("mixtral", "qwen3_moe"))
                self.assertEqual(len(value["tensors"]), value["n_tensors"])

    def test_hashes_are_those_of_the_file(self):
        folder = cli.model("qwen3_moe")
        value = self.good("inspect", folder, "--json", "--hashes").json()["expert_sha256"]
        tensors = weights.read_safetensors(os.path.join(folder, "model.safetensors"))
        for layer in range(2):
            for e in range(6):
                h = hashlib.sha256()
                for part in ("gate", "up", "down"):
                    name = f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
                    h.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
                self.assertEqual(value[layer][e], h.hexdigest())
        fused = self.good("inspect", cli.model("qwen3_moe", "fused"), "--json", "--hashes").json()
        self.assertEqual(fused["expert_sha256"], value)  # one expert, whatever file it lies in

    def test_people(self):
        text = self.good("inspect", cli.model("mixtral", "gguf"), "--tensors", "--keys").out.decode()
        for what in ("mixtral, GGUF", "top-2 of 6", "renormalised", "numerics    ferry-n",
                     "every tensor is used exactly once", "blk.1.ffn_down_exps.weight",
                     "key llama.expert_count = 6"):
            self.assertIn(what, text)


if __name__ == "__main__":
    cli.main()
