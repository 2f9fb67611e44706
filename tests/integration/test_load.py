#!/usr/bin/env python3
"""Loading: files that are missing, hostile, cut, shrinking while in use; and how much memory it takes."""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np

import cli
import gguf_write
import weights

STEPS = ("--ids", "1,2,3", "-n", "2", "--greedy")


def big_checkpoint(folder):
    """About 210 MB of BF16 in the shape of qwen3_moe; values repeat, sizes are what counts."""
    config = cli.config_of("qwen3_moe", hidden=512, inter=256, head_dim=64, heads=8,
                           num_hidden_layers=4, num_experts=64, vocab_size=8000)
    rng = np.random.default_rng(1)
    tile = weights.to_bf16_bits(rng.standard_normal(1 << 20).astype(np.float32) * 0.05)
    ones = weights.to_bf16_bits(np.ones(1024, np.float32))
    header, offset = {}, 0
    tensors = weights.tensor_list(config)
    for name, shape, _, _ in tensors:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, shape, _, _ in tensors:
            n, source = int(np.prod(shape)), ones if "norm" in name else tile
            while n > 0:
                f.write(source[:n].tobytes())
                n -= min(n, source.size)
    return folder


def big_tokenizer(path):
    """150,000 byte-level tokens and their merges, as many as Qwen has."""
    letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 324))]
    pairs = [[a, b] for a in letters for b in letters]
    merges = pairs + [[a + b, "a"] for a, b in pairs] + [[a + b + "a", "b"] for a, b in pairs[:20000]]
    vocab = {word: i for i, word in enumerate(letters + [a + b for a, b in merges])}
    with open(path, "w") as f:
        json.dump({"model": {"type": "BPE", "vocab": vocab, "merges": merges},
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                   "decoder": {"type": "ByteLevel"}}, f)


def status_kb(pid, key):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":"))


class Load(cli.Case):
    def test_missing_files_are_named(self):
        self.refused(1, "no-such-model", "inspect", cli.scratch("no-such-model"))
        self.refused(1, "nothing.gguf", "run", cli.scratch("nothing.gguf"), *STEPS)
        os.makedirs(cli.scratch("empty"), exist_ok=True)
        self.refused(1, "config.json", "inspect", cli.scratch("empty"))

    def test_hostile_files_are_one_line(self):
        n_refused = 0
        for name in sorted(os.listdir(os.path.join(cli.CORPUS, "gguf"))):
            path = cli.scratch("hostile.gguf")
            shutil.copy(os.path.join(cli.CORPUS, "gguf", name), path)
            self.refused(1, "", "inspect", path)  # good ones are no models either
            n_refused += 1
        folder = cli.scratch("hostile")
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(cli.config_of("qwen3_moe"), f)
        for name in sorted(os.listdir(os.path.join(cli.CORPUS, "safetensors"))):
            shutil.copy(os.path.join(cli.CORPUS, "safetensors", name),
                        os.path.join(folder, "model.safetensors"))
            self.refused(1, "", "inspect", folder)
            n_refused += 1
        self.assertGreater(n_refused, 70)

    def test_files_cut_anywhere_are_refused(self):
        for source in (os.path.join(cli.model("mixtral"), "model.safetensors"),
                       cli.model("mixtral", "gguf")):
            folder = cli.scratch("cut")
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            shutil.copy(os.path.join(cli.model("mixtral"), "config.json"), folder)
            path = os.path.join(folder, os.path.basename(source))
            size = os.path.getsize(source)
            for length in (0, 1, 7, 8, 24, 100, size // 3, size - 4096, size - 1):
                shutil.copy(source, path)
                os.truncate(path, length)
                self.refused(1, os.path.basename(source), "inspect",
                             path if path.endswith(".gguf") else folder)

    def test_demo_model_cut_is_refused(self):
        folder = cli.scratch("demo-cut")
        shutil.copytree(self.demo(), folder)
        path = os.path.join(folder, "model.safetensors")
        os.chmod(path, 0o644)
        os.truncate(path, os.path.getsize(path) // 2)
        self.refused(1, "model.safetensors", "run", folder, "-p", "Hello", "-n", "1")

    def test_file_that_shrinks_while_in_use(self):
        folder = cli.scratch("shrinks")
        shutil.copytree(cli.model("qwen3_moe"), folder)
        process = subprocess.Popen(
            [cli.FERRY, "run", folder, "--ids", "1,2,3", "-n", "1000000", "--context", "1000000",
             "--ignore-eos", "--no-repack", "-t", "1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.7)  # whether it is loading or stepping, it may only end in one way
        path = os.path.join(folder, "model.safetensors")
        os.truncate(path, 4096)
        _, err = process.communicate(timeout=cli.TIMEOUT_S)
        self.assertEqual(process.returncode, 1, err)
        lines = [n for n in err.decode().splitlines() if not n.startswith("ferry: warning:")]
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], "^ferry: error: .*model.safetensors")

    def test_mixed_expert_formats_are_refused(self):
        """One plain expert among quantised ones: rows would have two strides in one product."""
        case = {"config": cli.config_of("mixtral", hidden=64, inter=64), "seed": 3, "dtype": "F32"}
        named = gguf_write.gguf_tensors(case["config"], weights.make_tensors(case), legacy=True)
        original = gguf_write.type_of
        plain = "blk.1.ffn_down.4.weight"
        try:
            gguf_write.type_of = lambda name, x, kind: (
                "F32" if name == plain else original(name, x, kind))
            path = cli.scratch("mixed.gguf")
            gguf_write.write_file(path, gguf_write.metadata(case["config"]), named, "Q8_0")
        finally:
            gguf_write.type_of = original
        self.refused(1, "layer 1: the down matrix of expert 4", "inspect", path)

    def test_unknown_architectures_say_what_is_known(self):
        folder = cli.scratch("unknown")
        shutil.copytree(cli.model("olmoe"), folder)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({"model_type": "deepseek_v3"}, f)
        done = self.refused(1, "deepseek_v3", "inspect", folder)
        self.assertIn("qwen3_moe", done.err)

    def test_tokenizers_that_cannot_be_read_are_named(self):
        folder = cli.scratch("broken-tokenizer")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(cli.model("olmoe"), folder)
        self.assertIn(b"tokenizer none\n", self.good("inspect", folder).out)
        self.assertEqual(self.good("inspect", folder, "--json").json()["tokenizer"], "none")
        path = os.path.join(folder, "tokenizer.json")
        with open(path, "w") as f:
            f.write('{"model": {"type": "BPE", "vocab": ')
        self.assertRegex(self.good("inspect", folder).out, b"tokenizer cannot be read: .*JSON")
        found = self.good("inspect", folder, "--json").json()
        self.fits(found, "inspect")
        self.assertEqual(found["tokenizer"], "unreadable")
        self.assertIn("JSON", found["tokenizer_error"])
        self.assertEqual(found["memory"]["tokenizer_bytes"], 0)
        big_tokenizer(path)
        found = self.good("inspect", folder, "--json").json()
        self.assertEqual(found["tokenizer"], "good")
        self.assertNotIn("tokenizer_error", found)

    def resident(self, code, *args, stdin=subprocess.DEVNULL):
        """Bytes that a run has resident once they stay the same for a second, and at the peak;
        interrupted then, it ends with `code`."""
        process = subprocess.Popen([cli.FERRY, "run", *args], stdin=stdin,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        seen, deadline = [], time.monotonic() + 60
        while time.monotonic() < deadline:  # steady for a second: loaded (waiting, or stepping)
            time.sleep(0.2)
            seen.append(status_kb(process.pid, "VmRSS") * 1024)
            if len(seen) > 5 and max(seen[-5:]) - min(seen[-5:]) < 2e6 and seen[-1] > 200e6:
                break
        peak = status_kb(process.pid, "VmHWM") * 1024
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=cli.TIMEOUT_S)[1]
        self.assertEqual(process.returncode, code, err)
        return seen[-1], peak

    def test_memory_is_what_inspect_says(self):
        if os.environ.get("FERRY_TEST_SANITIZE"):
            self.skipTest("sizes of a process under a sanitizer mean nothing")
        folder = big_checkpoint(cli.scratch("big"))
        file_bytes = os.path.getsize(os.path.join(folder, "model.safetensors"))
        for name in ("no tokenizer", "a tokenizer"):
            if name == "a tokenizer":  # and the terminal, so that it waits after loading
                big_tokenizer(os.path.join(folder, "tokenizer.json"))
            # Every thread's scratch is predicted; it becomes resident with the first step.
            sizes = ["--context", "2000", "--threads", "2"]
            plan = self.good("inspect", folder, "--json", *sizes).json()["memory"]
            if name == "a tokenizer":
                self.assertGreater(plan["tokenizer_bytes"], 15e6)
                # While it waits for a text nothing catches the signal.
                seen, peak = self.resident(-signal.SIGINT, folder, *sizes, stdin=subprocess.PIPE)
            else:
                self.assertEqual(plan["tokenizer_bytes"], 0)
                # A step in progress ends, what was generated is printed.
                seen, peak = self.resident(130, folder, "--ids", "1,2,3", "-n", "1900", *sizes,
                                           "--greedy", "--ignore-eos")
            print(f"{name}: file {file_bytes / 1e6:.1f} MB, resident {seen / 1e6:.1f} MB, predicted "
                  f"{plan['resident_bytes'] / 1e6:.1f} MB, peak {peak / 1e6:.1f} MB")
            # Stepping adds KV pages and rows of the embedding; waiting adds nothing.
            self.assertLess(abs(seen / plan["resident_bytes"] - 1),
                            0.02 if name == "a tokenizer" else 0.03)
            self.assertLess(peak, 1.2 * plan["weights_bytes"] + plan["tokenizer_bytes"] + 200e6)
        shutil.rmtree(folder)


if __name__ == "__main__":
    cli.main()
