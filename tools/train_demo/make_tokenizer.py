#!/usr/bin/env python3
"""Train the demo model's byte-level BPE and write tokenizer.json and tokenizer_config.json.

What: a 4096-entry vocabulary with the structure of Qwen3's tokenizer.json (NFC, the Qwen2 split
expression, ByteLevel without its own expression, specials after the vocabulary).
Why here: the demo model has its own vocabulary, trained on its own training text only.
Must not know: the model or its training.
"""
import argparse
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# How often each domain's text is shown to the vocabulary trainer.
REPEAT = {"code": 1, "math": 1, "english": 1, "chinese": 2}
CHAT = ("{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + '\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def documents(text_dir):
    """Training documents, domain after domain."""
    for domain, repeat in REPEAT.items():
        with open(os.path.join(text_dir, "train", domain + ".jsonl"), encoding="utf-8") as f:
            docs = [json.loads(line) for line in f]
        for _ in range(repeat):
            yield from docs


def main():
    """Train and write both files."""
    cache = os.environ.get("FERRY_CACHE", os.path.expanduser("~/.cache/ferry"))
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--text", default=os.path.join(cache, "demo-data", "text"))
    ap.add_argument("--out", required=True, help="model directory")
    ap.add_argument("--vocab", type=int, default=4096)
    args = ap.parse_args()
    tok = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                              use_regex=False)
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.train_from_iterator(documents(args.text), trainers.BpeTrainer(
        vocab_size=args.vocab - len(SPECIALS), show_progress=False, min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    assert tok.get_vocab_size() == args.vocab
    os.makedirs(args.out, exist_ok=True)
    tok.save(os.path.join(args.out, "tokenizer.json"), pretty=True)
    added = {str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False,
                                       "rstrip": False, "single_word": False, "special": True}
             for s in SPECIALS}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
              "additional_special_tokens": SPECIALS[1:], "bos_token": None, "chat_template": CHAT,
              "clean_up_tokenization_spaces": False, "eos_token": "<|endoftext|>",
              "errors": "replace", "model_max_length": 2048, "pad_token": "<|endoftext|>",
              "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
              "unk_token": None}
    with open(os.path.join(args.out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
