#!/usr/bin/env python3
"""ferry logits: the same bytes on every road (law 2) for every architecture, layout and number format;
and files that cannot be written."""

import os
import signal
import stat
import subprocess
import tempfile
import time

import numpy as np

import cli
import weights

IDS = cli.ids(150)
LEVELS = ["ref"] + (["avx2"] if "avx2" in open("/proc/cpuinfo").read() else [])
WAYS = (
    ["--prefill-chunk", "1", "--threads", "2"],
    ["--prefill-chunk", "7", "--threads", "5", "--cpu-level", LEVELS[-1]],
    ["--prefill-chunk", "64", "--threads", "1", "--no-repack"],
    ["--prefill-chunk", "all", "--threads", "2", "--cpu-level", LEVELS[-1], "--no-repack"],
)
BASE = ["--prefill-chunk", "512", "--threads", "1", "--cpu-level", "ref"]
QUANTS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")


class Logits(cli.Case):
    def logits(self, model, flags=(), numbers=IDS, env=None):
        out = cli.scratch("out.safetensors")
        self.good("logits", model, "--ids", cli.text_of(numbers), "--out", out, *flags, env=env)
        with open(out, "rb") as f:
            data = f.read()
        os.unlink(out)
        return data

    def check_ways(self, model, ways=WAYS, numbers=IDS):
        want = self.logits(model, BASE, numbers)
        for way in ways:
            self.assertEqual(self.logits(model, way, numbers), want, f"{model} {way}")
        return want

    def test_architectures(self):
        for arch in cli.ARCHS:
            with self.subTest(arch):
                want = self.check_ways(cli.model(arch))
                for form in ("sharded", "fused"):
                    self.assertEqual(self.logits(cli.model(arch, form), WAYS[1]), want, form)

    def test_gguf_equals_safetensors(self):
        for arch in cli.ARCHS:
            with self.subTest(arch):
                forms = ["gguf", "gguf-split"] + (["gguf-legacy"] if arch == "mixtral" else [])
                one = self.check_ways(cli.model(arch, forms[0]), WAYS[1:3])
                for form in forms[1:]:
                    self.assertEqual(self.logits(cli.model(arch, form)), one, form)
                if arch in ("mixtral", "granitemoe"):  # rows of q and k are permuted: other sums
                    n = 150 * 160
                    a = np.frombuffer(one[-4 * n:], "<f4")
                    b = np.frombuffer(self.logits(cli.model(arch))[-4 * n:], "<f4")
                    self.assertLess(np.abs(a - b).max(), 0.05 * b.std())
                    self.assertGreater(np.abs(a - b).max(), 0)
                else:
                    self.assertEqual(self.logits(cli.model(arch)), one)

    def test_number_formats(self):
        for quant in QUANTS:
            with self.subTest(quant):
                self.check_ways(cli.model("qwen3_moe", "gguf", quant), WAYS[1:3], IDS[:20])

    def test_variables_are_roads_too(self):
        model = cli.model("olmoe")
        want = self.logits(model, BASE)
        env = {"FERRY_PREFILL_CHUNK": "3", "FERRY_THREADS": "3", "FERRY_CPU_LEVEL": "ref",
               "FERRY_NO_REPACK": "1"}
        self.assertEqual(self.logits(model, env=env), want)
        self.assertNotEqual(self.logits(model, env={"FERRY_KV": "bf16"}), want)  # this one is not

    def test_batch_of_one_equals_the_end_of_many(self):
        model = cli.model("mixtral")
        whole = weights.read_safetensors  # rows: the last is the same whatever came with it
        out = cli.scratch("last.safetensors")
        self.good("logits", model, "--ids", cli.text_of(IDS), "--out", out, "--last", "2")
        last = whole(out)["logits"]
        self.good("logits", model, "--ids", cli.text_of(IDS), "--out", out)
        every = whole(out)["logits"]
        self.assertEqual(last.shape, (2, 160))
        self.assertEqual(every.shape, (150, 160))
        self.assertTrue(np.array_equal(last, every[-2:]))
        self.good("logits", model, "--ids", cli.text_of(IDS[:60]), "--out", out)
        self.assertTrue(np.array_equal(whole(out)["logits"], every[:60]))  # causal

    def test_usage(self):
        model, out = cli.model("mixtral"), cli.scratch("x.safetensors")
        self.refused(2, "--out", "logits", model, "--ids", "1")
        self.refused(2, "--ids", "logits", model, "--out", out)
        self.refused(2, "--ids", "logits", model, "--out", out, "--ids", "1", "--ids-file", "f")
        self.refused(1, "160", "logits", model, "--out", out, "--ids", "1,160")
        self.refused(1, "no token ids", "logits", model, "--out", out, "--ids", ",")
        self.refused(1, "no-such-file", "logits", model, "--out", out, "--ids-file",
                     cli.scratch("no-such-file"))
        self.assertFalse(os.path.exists(out))
        self.assertFalse(os.path.exists(out + ".part"))

    def test_long_lists_of_ids(self):
        path, out = cli.scratch("many.txt"), cli.scratch("many.safetensors")
        with open(path, "w") as f:
            f.write(" ".join(map(str, cli.ids(5000))))
        self.good("logits", cli.model("olmoe"), "--ids-file", path, "--out", out, "--last", "3")
        self.assertEqual(weights.read_safetensors(out)["logits"].shape, (3, 160))
        with open(path, "w") as f:  # 40 MB, more tokens than a sequence may have
            f.write("1," * 20_000_000)
        done = cli.ferry("logits", cli.model("olmoe"), "--ids-file", path, "--out", out, "--last", "1")
        self.assertEqual(done.code, 1, done.err)
        self.assertRegex(done.err, "(?m)^ferry: error: .*(16777216|memory|context)")
        os.unlink(path)

    def test_json(self):
        out = cli.scratch("j.safetensors")
        value = self.good("logits", cli.model("olmoe"), "--ids", "1,2,3", "--out", out, "--last", "2",
                          "--json").json()
        self.fits(value, "logits")
        self.assertEqual((value["file"], value["n_positions"], value["n_vocab"]), (out, 2, 160))

    def test_devices_pipes_and_links_stay(self):
        model, out = cli.model("mixtral"), cli.scratch("plain.safetensors")
        self.good("logits", model, "--ids", "1,2", "--out", out)
        with open(out, "rb") as f:
            want = f.read()
        null = os.path.join(cli.SCRATCH, "null")  # never a name of the machine's own
        os.symlink("/dev/null", null)
        self.good("logits", model, "--ids", "1,2", "--out", null)
        self.assertTrue(stat.S_ISCHR(os.stat(null).st_mode))
        full = os.path.join(cli.SCRATCH, "full")
        os.symlink("/dev/full", full)
        self.refused(1, "No space left", "logits", model, "--ids", "1,2", "--out", full)
        self.assertTrue(stat.S_ISCHR(os.stat(full).st_mode) and os.path.islink(full))
        pipe = cli.scratch("pipe")
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        self.good("logits", model, "--ids", "1,2", "--out", pipe)
        self.assertEqual(reader.communicate(timeout=cli.TIMEOUT_S)[0], want)
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        target, link = cli.scratch("target"), cli.scratch("link")
        with open(target, "wb") as f:
            f.write(b"old")
        os.symlink(target, link)
        self.good("logits", model, "--ids", "1,2", "--out", link)
        self.assertTrue(os.path.islink(link))
        with open(target, "rb") as f:
            self.assertEqual(f.read(), want)
        self.refused(1, "folder", "logits", model, "--ids", "1,2", "--out", cli.SCRATCH)

    def test_a_part_of_somebody_else_stays(self):
        out = cli.scratch("taken.safetensors")
        os.symlink("/nowhere", out + ".part")  # is not followed, so it cannot be opened
        self.refused(1, "taken.safetensors.part", "logits", cli.model("olmoe"), "--ids", "1", "--out", out)
        self.assertTrue(os.path.islink(out + ".part"))
        self.assertFalse(os.path.exists(out))

    def test_the_model_is_not_overwritten(self):
        for path in (cli.model("olmoe"), cli.model("olmoe", "gguf")):
            file = path if path.endswith(".gguf") else os.path.join(path, "model.safetensors")
            before = os.stat(file)
            link = cli.scratch("hard-" + os.path.basename(file))
            os.link(file, link)
            for out in (file, link):
                self.refused(1, "file of the model", "logits", path, "--ids", "1", "--out", out)
            self.assertEqual(os.stat(file).st_mtime_ns, before.st_mtime_ns)

    def test_signals_leave_nothing(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            out = cli.scratch("ended.safetensors")
            process = subprocess.Popen(
                [cli.FERRY, "logits", cli.model("olmoe"), "--ids", cli.text_of(cli.ids(1000)),
                 "--out", out, "--prefill-chunk", "1", "--cpu-level", "ref", "--no-repack"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=cli.environment())
            while not os.path.exists(out + ".part") and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(sig)
            self.assertEqual(process.wait(timeout=cli.TIMEOUT_S), -sig)
            self.assertFalse(os.path.exists(out + ".part") or os.path.exists(out))

    def test_output_that_cannot_be_written(self):
        model = cli.model("mixtral")
        self.refused(1, "no-such-folder", "logits", model, "--ids", "1", "--out",
                     cli.scratch("no-such-folder/x.safetensors"))
        folder = tempfile.mkdtemp(dir=cli.SCRATCH)
        if os.geteuid() != 0 or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder],
                capture_output=True, check=False).returncode != 0:
            self.skipTest("a full disk needs root and a tmpfs")
        try:
            out = os.path.join(folder, "x.safetensors")
            self.refused(1, "No space left", "logits", model, "--ids", cli.text_of(IDS), "--out", out)
            self.assertEqual(os.listdir(folder), [])
            self.good("logits", model, "--ids", cli.text_of(IDS[:50]), "--out", out)
            before = weights.read_safetensors(out)["logits"].tobytes()
            self.refused(1, "No space left", "logits", model, "--ids", cli.text_of(IDS), "--out", out)
            self.assertEqual(weights.read_safetensors(out)["logits"].tobytes(), before)  # the old file stays whole
        finally:
            subprocess.run(["umount", folder], check=True)


if __name__ == "__main__":
    cli.main()
