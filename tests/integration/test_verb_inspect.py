#!/usr/bin/env python3
"""ferry inspect: facts about a checkpoint, for people and machines, for both file formats."""

import hashlib
import json
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

    def test_manifest(self):
        for form in ("safetensors", "gguf"):
            model = cli.model("olmoe", form)
            place = model + ".ferry.json" if form == "gguf" else os.path.join(model, "ferry-manifest.json")
            value = self.good("inspect", model, "--json", "--hashes").json()
            self.assertEqual(value["manifest_root"], "")
            self.assertIn("no manifest", self.good("inspect", model).out.decode())
            header = "0" * 64  # any other model's
            experts = [{"layer": layer, "expert": e, "sha256": value["expert_sha256"][layer][e]}
                       for layer in range(2) for e in range(6)]
            try:
                for wrong in (True, False):
                    with open(place, "w") as f:
                        json.dump({"version": 1, "model": header, "experts": experts}, f)
                    if wrong:
                        done = self.refused(1, os.path.basename(place), "inspect", model)
                        self.assertIn("is of model 0000000000000000..., the one here is", done.err)
                        header = value["header_hash"]
                value = self.good("inspect", model, "--json").json()
                self.fits(value, "inspect")
                self.assertRegex(value["manifest_root"], "^[0-9a-f]{64}$")
                self.assertIn(value["manifest_root"][:16], self.good("inspect", model).out.decode())
                logits = ("logits", model, "--ids", "1,2", "--out", cli.scratch("manifest.safetensors"))
                self.good(*logits)
                experts[7]["sha256"] = "f" * 64
                with open(place, "w") as f:
                    json.dump({"version": 1, "model": header, "experts": experts}, f)
                self.refused(1, "layer 1 expert 1", *logits)
                self.refused(1, "f" * 64, *logits, "--no-repack")
            finally:
                os.remove(place)

    def test_manifest_is_written_once_and_compared(self):
        for form, last in (("gguf", "blk.1.ffn_down_exps.weight"),
                           ("safetensors", "model.layers.1.block_sparse_moe.experts.5.w2.weight")):
            with self.subTest(form=form):
                self._written_once_and_compared(cli.model("mixtral", form), last)

    def _written_once_and_compared(self, model, last):
        is_file = os.path.isfile(model)
        place = model + ".ferry.json" if is_file else os.path.join(model, "ferry-manifest.json")
        weights_file = model if is_file else os.path.join(model, "model.safetensors")
        other, link = (cli.scratch(f"{name}-{is_file}.json") for name in ("other", "link"))
        for path in (place, other, link):
            self.addCleanup(lambda p=path: os.path.lexists(p) and os.remove(p))
        logits = ("logits", model, "--ids", "1,2", "--out", cli.scratch("manifest.safetensors"))
        done = self.good("inspect", model, "--json", f"--write-manifest={other}")
        self.assertEqual(done.json()["manifest_root"], "")  # nobody will look there
        done = self.good("inspect", model, "--json", "--write-manifest")
        self.assertIn(place, done.err)
        root = done.json()["manifest_root"]
        self.assertEqual(root, self.good("inspect", model, "--json").json()["manifest_root"])
        self.assertRegex(root, "^[0-9a-f]{64}$")
        with open(place, "rb") as a, open(other, "rb") as b:
            written = a.read()
            self.assertEqual(written, b.read())
        self.fits(json.loads(written), "manifest")
        os.symlink("nowhere", link)
        for flag in ("--write-manifest", f"--write-manifest={link}", f"--write-manifest={weights_file}"):
            self.refused(1, "is not replaced", "inspect", model, flag)
        self.assertTrue(os.path.islink(link))
        self.refused(1, "No such file or directory", "inspect", model, "--write-manifest=/no/such/folder/x")
        self.assertEqual(cli.ferry("inspect", model, "--write-manifest=").code, 2)
        self.good(*logits)
        tensors = self.good("inspect", model, "--json", "--tensors").json()["tensors"]
        at = next(t["offset"] + t["bytes"] - 1 for t in tensors if t["name"] == last)

        def flip():  # one bit of the last expert of the last layer
            with open(weights_file, "r+b") as f:
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 1]))
        self.good("inspect", model, "--hashes")
        flip()
        try:
            self.refused(1, "layer 1 expert 5", *logits)
            for more in ((), ("--json",)):
                done = cli.ferry("inspect", model, "--hashes", *more)
                self.assertEqual(done.code, 1)
                self.assertIn("1 experts are not what the manifest says", done.err)
            self.good("inspect", model)
        finally:
            flip()
        self.good(*logits)

    def test_people(self):
        text = self.good("inspect", cli.model("mixtral", "gguf"), "--tensors", "--keys").out.decode()
        for what in ("mixtral, GGUF", "top-2 of 6", "renormalised", "numerics    ferry-n",
                     "every tensor is used exactly once", "blk.1.ffn_down_exps.weight",
                     "key llama.expert_count = 6"):
            self.assertIn(what, text)

    def test_a_group(self):
        """What each of several ranks would hold, before there is one."""
        model = cli.model("mixtral") # 2 layers of 6 experts
        alone = self.good("inspect", model, "--json").json()
        self.assertNotIn("group", alone)
        weights = alone.pop("memory")["weights_bytes"]
        for ranks, replicas, held, survived in ((2, 1, [6, 6], 0), (3, 2, [8, 8, 8], 1),
                                                (7, 1, [2, 2, 2, 2, 2, 2, 0], 0),
                                                (2, 2, [12, 12], 1)):
            value = self.good("inspect", model, "--json", "--ranks", ranks, "--replicas",
                              replicas).json()
            self.fits(value, "inspect")
            group = value.pop("group")
            self.assertEqual(value.pop("memory")["weights_bytes"], weights)  # of one rank alone
            self.assertEqual(value, alone)
            self.assertEqual(sorted((s["experts"] for s in group["seats"]), reverse=True), held)
            self.assertEqual((group["ranks"], group["losses_survived_by_replicas"],
                              group["losses_survived_by_file"]), (ranks, survived, ranks - 1))
            for seat in group["seats"]:
                self.assertLessEqual(seat["weights_bytes"], weights)
                self.assertEqual(seat["weights_bytes"] == weights, seat["experts"] == 12)
            self.assertEqual(any(s["room_bytes"] for s in group["seats"]), survived == 0)
        text = self.good("inspect", model, "--ranks", 3, "--replicas", 2).out.decode()
        self.assertIn("group       3 ranks", text)
        self.assertIn("losses    any 1 without a load", text)
        self.refused(1, "--replicas 3", "inspect", model, "--ranks", 2, "--replicas", 3)
        self.refused(1, "nowhere.json", "inspect", model, "--ranks", 2, "--placement",
                     cli.scratch("nowhere.json"))


if __name__ == "__main__":
    cli.main()
