/* Hard limits on what files, users and peers may ask for. Crossing one is FERRY_ERR_LIMIT or
 * FERRY_ERR_FORMAT, never a crash.
 *
 * Why one file: an operator can read every bound in one place. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

enum {
    LIMIT_TENSORS = 1 << 20,      /* tensors in one checkpoint (61 layers x 384 experts x 3 fit) */
    LIMIT_TENSOR_DIMS = 4,        /* dimensions of one tensor */
    LIMIT_TENSOR_NAME = 1024,     /* bytes of a tensor name */
    LIMIT_GGUF_KEYS = 1 << 16,    /* metadata keys of a GGUF file */
    LIMIT_GGUF_KEY = 65535,       /* bytes of a GGUF key */
    LIMIT_GGUF_STRING = 64 << 20, /* bytes of a GGUF string */
    LIMIT_GGUF_ARRAY = 1 << 24,   /* elements of a GGUF array */
    LIMIT_GGUF_ALIGNMENT = 1 << 20, /* general.alignment */
    /* Per shard: a tensor has four keys and eight values, so 131,072 fit in one header (DeepSeek-V3
     * has 91,991 in all its shards, which would need 12 MB; 384 experts with scales may have more
     * and need shards). Gemma 3's tokenizer.json has 33 MB and 1.8 million values. At the limit
     * reading takes a second or two, and 100 to 250 bytes of memory per value. */
    LIMIT_SAFETENSORS_HEADER = 32 << 20, /* bytes (the reference stops at 100 MB) */
    LIMIT_JSON_FILE =
        64 << 20, /* bytes of config.json, tokenizer.json and its config, index, manifest */
    LIMIT_JSON_DEPTH = 64,
    LIMIT_JSON_VALUES = 1 << 22,   /* of tokenizer.json, tokenizer_config.json; half as many keys */
    LIMIT_HEADER_VALUES = 1 << 20, /* of a safetensors header, index or config; half as many keys */
    LIMIT_SHARDS = 4096,           /* files of one checkpoint */
    LIMIT_VOCAB = 1 << 22,
    LIMIT_TOKEN_BYTES = 1 << 16, /* bytes of one vocabulary entry */
    LIMIT_TEXT = 1 << 29,        /* bytes of one text, as given and after each normalizer step */
    /* Times that a tokenizer's normalizer, its pre-tokenizer and its decoder may each make a text
     * longer (one character of NFKC grows 11 times). The bound holds for every stretch of a text
     * between two added tokens, and a stretch of less than LIMIT_TEXT_FLOOR bytes counts as that
     * many: each of them may become 256 bytes. */
    LIMIT_TEXT_GROWTH = 16,
    LIMIT_TEXT_FLOOR = 16,
    /* Chat templates. The largest in use has 20 kB, nests 12 deep at rest and 60 when it runs. */
    LIMIT_TEMPLATE_SOURCE = 1 << 20,   /* bytes */
    LIMIT_TEMPLATE_DEPTH = 200,        /* of tags and expressions */
    LIMIT_TEMPLATE_NODES = 1 << 17,    /* of the syntax tree */
    LIMIT_TEMPLATE_NAMES = 1024,       /* of variables */
    LIMIT_TEMPLATE_RUN_DEPTH = 600,    /* evaluation inside evaluation, macros in macros */
    LIMIT_TEMPLATE_RANGE = 100000,     /* numbers of one range(), as jinja2's sandbox */
    LIMIT_TEMPLATE_STEPS = 50000000,   /* of one rendering, by default; a second or two */
    LIMIT_TEMPLATE_OUTPUT = 64 << 20,  /* bytes of one rendered text, by default */
    LIMIT_TEMPLATE_MEMORY = 128 << 20, /* bytes of values of one rendering, by default */
    /* Requests over HTTP. */
    LIMIT_HTTP_HEADERS = 100,           /* of one request */
    LIMIT_HTTP_HEADER_BYTES = 16 << 10, /* of all of them */
    LIMIT_HTTP_URI = 8 << 10,           /* bytes, with the query */
    LIMIT_HTTP_METHOD = 16,             /* bytes */
    LIMIT_HTTP_BODY = 32 << 20,         /* bytes of one body, by default */
    LIMIT_HTTP_BODIES = 128 << 20,      /* of all bodies in memory, by default */
    LIMIT_HTTP_CONNECTIONS = 1024,      /* at once, by default; later ones wait in the kernel */
    LIMIT_LAYERS = 1024,
    LIMIT_EXPERTS = 4096,          /* per layer */
    LIMIT_EXPERTS_TOTAL = 1 << 18, /* over all layers */
    LIMIT_TOP_K = 64,
    LIMIT_HIDDEN = 1 << 17,
    LIMIT_HEAD_DIM = 1024,
    LIMIT_HEADS = 4096,
    LIMIT_THREADS = 1024,
    LIMIT_CONTEXT = 1 << 24, /* tokens of one sequence */
    LIMIT_SEQUENCES = 4096,
    LIMIT_SEATS = 64, /* ranks of one expert-parallel group: one bit each */
    /* Joining a group. */
    LIMIT_TERMS = 32,            /* settings that are compared at the handshake */
    LIMIT_TERM_BYTES = 1024,     /* of a name or a value */
    LIMIT_HANDSHAKES = 128,      /* connections that are not a member's yet */
    LIMIT_FABRIC_QUEUE = 1 << 20 /* bytes of control messages that wait for one peer */
};

#endif
