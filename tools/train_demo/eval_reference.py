#!/usr/bin/env python3
"""Perplexity and bits per byte of a Hugging Face checkpoint, by transformers in f32.

What: the reference that `ferry eval` is compared with. Definition:
  - a text is tokenised as one stream; no BOS unless the tokenizer adds one by itself;
  - windows of `--window` tokens (512) at a stride of `--stride` (256): window w covers tokens
    [256 w, 256 w + 512) of the stream, positions restart at 0 in each window;
  - every token but the first of the stream is scored exactly once: window 0 scores its tokens
    1..511, each later window its tokens 256..511 (the last one may be shorter); windows stop when
    the stream is covered;
  - negative log likelihoods are in nats, log-softmax in f64 over f32 logits, summed in f64;
  - perplexity = exp(sum / scored tokens); bits per byte = sum / ln 2 / bytes of the text file.
Why here: committed beside the demo model as reference_eval.json.
Must not know: Ferry's engine.
"""
import argparse
import glob
import json
import math
import os

import torch


def windows(count, window, stride):
    """Yield (begin, end, first scored token), absolute positions in the stream."""
    scored, begin = 1, 0
    while scored < count:
        end = min(begin + window, count)
        yield begin, end, scored
        scored, begin = end, begin + stride


@torch.no_grad()
def score(model, ids, window, stride):
    """(sum of nll in nats, scored tokens) of a token id list."""
    total, count = 0.0, 0
    for begin, end, first in windows(len(ids), window, stride):
        piece = torch.tensor([ids[begin:end]])
        logits = model(input_ids=piece, use_cache=False).logits[0].double()
        logp = torch.log_softmax(logits[first - begin - 1: end - begin - 1], -1)
        target = piece[0, first - begin:]
        total -= logp.gather(1, target[:, None]).sum().item()
        count += end - first
    return total, count


def main():
    """Evaluate and print JSON."""
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", help="checkpoint directory")
    ap.add_argument("texts", nargs="*", help="text files; default MODEL/heldout/*.txt")
    ap.add_argument("--window", type=int, default=512)
    ap.add_argument("--stride", type=int, default=256)
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    if not 0 < args.stride < args.window:
        ap.error("--stride must be at least 1 and less than --window")
    torch.set_num_threads(args.threads)
    import transformers  # pylint: disable=import-outside-toplevel
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager").eval()
    paths = args.texts or sorted(glob.glob(os.path.join(args.model, "heldout", "*.txt")))
    out = {"window": args.window, "stride": args.stride, "torch": torch.__version__.split("+")[0],
           "transformers": transformers.__version__, "dtype": "float32", "texts": {}}
    for path in paths:
        with open(path, "rb") as f:
            raw = f.read()
        ids = tokenizer(raw.decode("utf-8"))["input_ids"]
        if len(ids) < 2:
            ap.error(f"{path}: {len(ids)} tokens; at least 2 are needed to score one")
        nll, count = score(model, ids, args.window, args.stride)
        name = os.path.splitext(os.path.basename(path))[0]
        out["texts"][name] = {"bytes": len(raw), "tokens": len(ids), "scored": count,
                              "nll_nats": nll, "perplexity": math.exp(nll / count),
                              "bits_per_byte": nll / math.log(2) / len(raw)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
