#!/usr/bin/env python3
"""Drives the pinned llama.cpp through its C API: logits, speed, routing, build facts.

What: a small module and command line over libllama (the build tools/peers/setup.sh installs).
Why here: benches (bench/peers) and oracles (tools/oracle) need the same peer, called the same way.
Must not know: anything about Ferry. Nothing here reads Ferry's output or chooses its settings.

Settings that all figures share: CPU only, weights by mmap with run-time repacking as llama.cpp
does by default, KV cache f16, flash attention "auto" (llama.cpp's default), n_batch = n_ubatch =
512, per-sequence KV streams (llama.cpp's default).

Command line (run it with the environment's own python):
    llama.py info                               build, CPU features, exit 1 if they are unused
    llama.py bench MODEL [-p 512 -n 64 --batch 1,4,16 --threads 2 --reps 1]   JSON on stdout
    llama.py logits MODEL --ids 1,2,3 --out F.npy
    llama.py routing MODEL [--tokens 16]        experts used per layer, JSON on stdout
"""

import argparse
import ctypes
import json
import os
import platform
import sys
import time

import numpy as np

import capi

N_BATCH = 512
GGML_TYPE_F16 = 1
NEEDED_FEATURES = ("AVX2", "FMA", "F16C", "REPACK", "OPENMP")

_state = {}


def _api():
    """Returns (libllama, libggml-base), loading them once; what llama.cpp logs goes to a list."""
    if not _state:
        lib, base, folder = capi.load()
        log = []
        keep_log = capi.LOG_CALLBACK(
            lambda _level, text, _user: log.append(text.decode("utf-8", "replace")))
        lib.llama_log_set(keep_log, None)
        lib.llama_backend_init()
        _state.update(lib=lib, base=base, folder=folder, log=log, keep=keep_log)
    return _state["lib"], _state["base"]


def _note(name):
    """Reads a one-line note that setup.sh left beside the libraries."""
    try:
        with open(os.path.join(_state["folder"], name), encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return "unknown"


def info():
    """Returns versions, the commit and the CPU features that the loaded library was built with."""
    lib, base = _api()
    system = lib.llama_print_system_info().decode()
    features = {}
    for part in system.replace("CPU :", "|").split("|"):
        name, sep, value = part.partition("=")
        if sep:
            features[name.strip()] = value.strip()
    needed = NEEDED_FEATURES if platform.machine() == "x86_64" else ("REPACK",)
    return {
        "package": _note("package"),
        "commit": _note("commit"),
        "ggml": base.ggml_version().decode(),
        "system_info": system.strip(),
        "missing": [f for f in needed if features.get(f) != "1"],
    }


class Model:
    """One loaded model; contexts are made per use. Close it (or use "with") to free the memory."""

    def __init__(self, path, repack=True):
        lib = _api()[0]
        if not os.path.isfile(path):
            raise SystemExit(f"llama.py: no such model file: {path}")
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        _state["log"].clear()
        self.ptr = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.ptr:
            raise SystemExit(f"llama.py: llama.cpp cannot load {path}: " + tail_of_log())
        # llama.cpp logs one line per tensor that it stores in a layout of its own.
        self.n_repacked = "".join(_state["log"]).count("repack tensor")
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.ptr))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Frees the model; a second call does nothing."""
        if self.ptr is not None:
            _api()[0].llama_model_free(self.ptr)
            self.ptr = None

    def context(self, n_ctx, n_seq, n_threads, callback=None):
        """Makes a context of n_seq sequences with n_ctx positions each."""
        lib = _api()[0]
        params = lib.llama_context_default_params()
        # Streams are padded to 256 positions; ask for that much so that none is cut short.
        params.n_ctx = -(-n_ctx // 256) * 256 * n_seq
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_seq_max = n_seq
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = GGML_TYPE_F16
        params.no_perf = True
        if callback is not None:
            params.cb_eval = callback
        ptr = lib.llama_init_from_model(self.ptr, params)
        if not ptr:
            raise SystemExit("llama.py: llama.cpp cannot make a context: " + tail_of_log())
        return Context(ptr, self.n_vocab, n_seq)


class Context:
    """A llama_context with one reusable batch of N_BATCH tokens."""

    def __init__(self, ptr, n_vocab, n_seq):
        self.ptr, self.n_vocab, self.n_seq = ptr, n_vocab, n_seq
        self.batch = _api()[0].llama_batch_init(N_BATCH, 0, 1)

    def close(self):
        """Frees the context and its batch."""
        lib = _api()[0]
        lib.llama_batch_free(self.batch)
        lib.llama_free(self.ptr)

    def clear(self):
        """Empties the KV cache."""
        lib = _api()[0]
        lib.llama_memory_clear(lib.llama_get_memory(self.ptr), True)

    def decode(self, ids, positions, seqs, wanted):
        """Runs one llama_decode over equal-length lists and waits for its end."""
        lib = _api()[0]
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, (token, pos, seq, want) in enumerate(zip(ids, positions, seqs, wanted)):
            batch.token[i] = int(token)
            batch.pos[i] = int(pos)
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = int(seq)
            batch.logits[i] = 1 if want else 0
        status = lib.llama_decode(self.ptr, batch)
        if status != 0:
            raise SystemExit(f"llama.py: llama_decode returned {status}: " + tail_of_log())
        lib.llama_synchronize(self.ptr)

    def prompt(self, ids, seq=0, start=0):
        """Feeds ids in chunks of N_BATCH; logits are made for the last token only."""
        for at in range(0, len(ids), N_BATCH):
            chunk = ids[at : at + N_BATCH]
            last = at + len(chunk) == len(ids)
            wanted = [False] * (len(chunk) - 1) + [last]
            pos = range(start + at, start + at + len(chunk))
            self.decode(chunk, pos, [seq] * len(chunk), wanted)

    def logits_row(self, index):
        """Copies the logits of batch entry index: [vocab] f32."""
        row = _api()[0].llama_get_logits_ith(self.ptr, index)
        if not row:
            raise SystemExit(f"llama.py: no logits for batch entry {index}")
        return np.ctypeslib.as_array(row, (self.n_vocab,)).copy()


def tail_of_log(lines=3):
    """Returns the last lines llama.cpp logged, joined to one, for error messages."""
    return "; ".join("".join(_state.get("log", [])).splitlines()[-lines:])


def logits(model_path, ids, n_threads=2, repack=True):
    """Returns the logits of every position of one sequence: [len(ids), vocab] f32."""
    with Model(model_path, repack) as model:
        ctx = model.context(len(ids), 1, n_threads)
        out = np.empty((len(ids), model.n_vocab), dtype=np.float32)
        for at in range(0, len(ids), N_BATCH):
            chunk = ids[at : at + N_BATCH]
            n = len(chunk)
            ctx.decode(chunk, range(at, at + n), [0] * n, [True] * n)
            for i in range(n):
                out[at + i] = ctx.logits_row(i)
        ctx.close()
    return out


class Clock:
    """Wall time of a span, and how much of threads x wall time the process really ran.

    llama.cpp's threads spin while they wait for each other, so a share well under 1 means that
    something else had the CPUs, and that the figure says little.
    """

    def __init__(self, threads):
        self.threads, self.wall, self.cpu = threads, time.monotonic(), time.process_time()

    def stop(self):
        """Returns (seconds, CPU share)."""
        wall, cpu = time.monotonic() - self.wall, time.process_time() - self.cpu
        return wall, cpu / (wall * self.threads)


def _step_rate(model, n_seq, steps, threads, rng):
    """Steps n_seq sequences together from an empty cache, random tokens.

    Returns (total tokens/s, share of the CPU time that the threads asked for).
    """
    ctx = model.context(steps + 2, n_seq, threads)
    ids = rng.integers(0, model.n_vocab, size=(steps + 2, n_seq))
    seqs, wanted = list(range(n_seq)), [True] * n_seq
    for warm in range(2):
        ctx.decode(ids[warm], [warm] * n_seq, seqs, wanted)
    ctx.clear()
    clock = Clock(threads)
    for step in range(steps):
        ctx.decode(ids[step + 2], [step] * n_seq, seqs, wanted)
    elapsed, got = clock.stop()
    ctx.close()
    return n_seq * steps / elapsed, got


def bench(model_path, pp=512, tg=64, threads=2, batch=(1, 4, 16), reps=1, warm=64, seed=1,
          repack=True):
    """Measures prompt processing and generation, tokens/s, one figure per repetition.

    Prompts and generated tokens are drawn uniformly from the vocabulary: a repeated token would
    send every row to the same experts. Generation starts from an empty cache. A prompt of warm
    tokens and two steps run before the clock starts. *_cpu_share: see Clock.
    """
    rng = np.random.default_rng(seed)
    started = time.monotonic()
    out = {"engine": "llama.cpp", "pp": pp, "tg": tg, "threads": threads, "batch": list(batch),
           "pp_tps": [], "tg_tps": {str(b): [] for b in batch}, "pp_cpu_share": [],
           "tg_cpu_share": {str(b): [] for b in batch}}
    with Model(model_path, repack) as model:
        out["load_s"] = time.monotonic() - started
        out["repacked_tensors"] = model.n_repacked
        ctx = model.context(pp, 1, threads) if pp else None
        if pp:
            ctx.prompt(rng.integers(0, model.n_vocab, size=min(warm, pp)))
        for _ in range(reps):
            if pp:
                ctx.clear()
                ids = rng.integers(0, model.n_vocab, size=pp)
                clock = Clock(threads)
                ctx.prompt(ids)
                elapsed, got = clock.stop()
                out["pp_tps"].append(pp / elapsed)
                out["pp_cpu_share"].append(got)
            for b in batch if tg else ():
                rate, got = _step_rate(model, b, tg, threads, rng)
                out["tg_tps"][str(b)].append(rate)
                out["tg_cpu_share"][str(b)].append(got)
        if pp:
            ctx.close()
    return out


def _watch_routing(chosen):
    """Makes an evaluation callback that keeps each layer's expert ids in chosen[layer]."""
    base = _api()[1]

    def watch(address, ask, _user):
        name = base.ggml_get_name(address).decode("utf-8", "replace")
        wanted = name.startswith("ffn_moe_topk-")
        if wanted and not ask:
            tensor = capi.Tensor.from_address(address)
            k, n_tokens, stride = tensor.ne[0], tensor.ne[1], tensor.nb[1]
            data = base.ggml_get_data(address)
            rows = [(ctypes.c_int32 * k).from_address(data + t * stride) for t in range(n_tokens)]
            chosen.setdefault(int(name.rsplit("-", 1)[1]), []).append(np.array(rows, np.int32))
        return wanted or not ask

    return capi.EVAL_CALLBACK(watch)


def routing(model_path, n_tokens=16, threads=2, seed=1, repeats=4):
    """Counts which experts a step of n_tokens random tokens of distinct sequences uses.

    Returns, per layer, the mean number of distinct experts per step and the coefficient of
    variation of the experts' loads over a prompt of 512 random tokens. Sampling alone gives that
    figure a floor: cv_uniform. uniform_per_step is what independent uniform choices would touch.
    """
    rng = np.random.default_rng(seed)
    n_experts = _expert_count(model_path)
    chosen = {}
    watch = _watch_routing(chosen)
    with Model(model_path) as model:
        ctx = model.context(repeats + 1, n_tokens, threads, watch)
        for step in range(repeats):
            ctx.decode(rng.integers(0, model.n_vocab, size=n_tokens), [step] * n_tokens,
                       list(range(n_tokens)), [True] * n_tokens)
        ctx.close()
        distinct = {k: float(np.mean([len(np.unique(r)) for r in v])) for k, v in chosen.items()}
        chosen.clear()
        ctx = model.context(N_BATCH, 1, threads, watch)
        ctx.prompt(rng.integers(0, model.n_vocab, size=N_BATCH))
        ctx.close()
    # llama.cpp computes only the wanted rows in the last layer, so its load says nothing.
    cv, share = {}, 0.0
    for layer, parts in chosen.items():
        ids = np.concatenate(parts)
        share = ids.shape[1] / n_experts
        if len(ids) == N_BATCH:
            load = np.bincount(ids.ravel(), minlength=n_experts)
            cv[layer] = float(load.std() / load.mean())
    return {
        "tokens_per_step": n_tokens,
        "experts": n_experts,
        "experts_per_step": [distinct[k] for k in sorted(distinct)],
        "experts_per_step_mean": float(np.mean(list(distinct.values()))),
        "uniform_per_step": n_experts * (1 - (1 - share) ** n_tokens),
        "load_cv": [cv[k] for k in sorted(cv)],
        "load_cv_mean": float(np.mean(list(cv.values()))),
        "cv_uniform": float(np.sqrt((1 - share) / (share * N_BATCH))),
    }


def _expert_count(model_path):
    """Reads <arch>.expert_count from a GGUF file's metadata."""
    import gguf_header

    meta = gguf_header.read(model_path)["meta"]
    return meta[meta["general.architecture"] + ".expert_count"]


def _run_info(_args):
    facts = info()
    print(json.dumps(facts, indent=1))
    if facts["missing"]:
        print("llama.py: this build leaves out " + ", ".join(facts["missing"])
              + ": it would be no fair peer on an AVX2 machine", file=sys.stderr)
        return 1
    return 0


def main():
    """Parses the command line; see the file's head."""
    parser = argparse.ArgumentParser(prog="llama.py", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("info")
    p = verbs.add_parser("bench")
    p.add_argument("model")
    p.add_argument("-p", type=int, default=512)
    p.add_argument("-n", type=int, default=64)
    p.add_argument("--batch", default="1,4,16")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--reps", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-repack", action="store_true")
    p = verbs.add_parser("logits")
    p.add_argument("model")
    p.add_argument("--ids", required=True, help="comma-separated token ids")
    p.add_argument("--out", required=True, help="a .npy file, [n, vocab] f32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--no-repack", action="store_true")
    p = verbs.add_parser("routing")
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=16)
    p.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.verb == "info":
        return _run_info(args)
    if args.verb == "bench":
        batch = [int(b) for b in args.batch.split(",") if b]
        out = bench(args.model, args.p, args.n, args.threads, batch, args.reps, seed=args.seed,
                    repack=not args.no_repack)
        print(json.dumps(out))
    elif args.verb == "logits":
        ids = [int(i) for i in args.ids.split(",")]
        np.save(args.out, logits(args.model, ids, args.threads, not args.no_repack))
    else:
        print(json.dumps(routing(args.model, args.tokens, args.threads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
