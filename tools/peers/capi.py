"""ctypes declarations of the few llama.cpp functions and structs that the peer tools call.

What: the C API of the commit pinned in tools/peers/setup.sh, no more of it than is used.
Why here: the struct layouts belong to one commit; when the pin moves, this file moves with it.
Must not know: what is measured or compared.

load() checks the layouts against the library's own defaults, so that a moved field is an error and
not a wrong setting.
"""

import ctypes
import os
import sys
from ctypes import (POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_int64, c_size_t,
                    c_uint32, c_void_p)

LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
EVAL_CALLBACK = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)


class ModelParams(ctypes.Structure):
    """struct llama_model_params."""

    _fields_ = [
        ("devices", c_void_p), ("tensor_buft_overrides", c_void_p), ("n_gpu_layers", c_int32),
        ("split_mode", c_int), ("load_mode", c_int), ("lazy_mode", c_int), ("main_gpu", c_int32),
        ("tensor_split", c_void_p), ("progress_callback", c_void_p), ("progress_data", c_void_p),
        ("kv_overrides", c_void_p), ("vocab_only", c_bool), ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool), ("no_host", c_bool), ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class ContextParams(ctypes.Structure):
    """struct llama_context_params."""

    _fields_ = [
        ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32), ("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32), ("n_threads", c_int32), ("n_threads_batch", c_int32),
        ("ctx_type", c_int), ("rope_scaling_type", c_int), ("pooling_type", c_int),
        ("attention_type", c_int), ("flash_attn_type", c_int), ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float), ("yarn_ext_factor", c_float), ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float), ("yarn_beta_slow", c_float), ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float), ("cb_eval", EVAL_CALLBACK), ("cb_eval_data", c_void_p),
        ("type_k", c_int), ("type_v", c_int), ("abort_callback", c_void_p),
        ("abort_data", c_void_p), ("embeddings", c_bool), ("offload_kqv", c_bool),
        ("no_perf", c_bool), ("op_offload", c_bool), ("swa_full", c_bool), ("kv_unified", c_bool),
        ("samplers", c_void_p), ("n_samplers", c_size_t), ("ctx_other", c_void_p),
    ]


class Batch(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)), ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]


class Tensor(ctypes.Structure):
    """The head of struct ggml_tensor: enough to find a row."""

    _fields_ = [("type", c_int), ("buffer", c_void_p), ("ne", c_int64 * 4), ("nb", c_size_t * 4)]


_SIGNATURES = {
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [LOG_CALLBACK, c_void_p]),
    "llama_print_system_info": (c_char_p, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_synchronize": (None, [c_void_p]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
}
_BASE_SIGNATURES = {
    "ggml_version": (c_char_p, []),
    "ggml_get_name": (c_char_p, [c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
}


def default_folder():
    """Where setup.sh puts the libraries: lib/llama of the running environment."""
    return os.environ.get("PEER_LLAMA_LIB", os.path.join(sys.prefix, "lib", "llama"))


def load(folder=None):
    """Loads libllama and libggml-base; returns (libllama, libggml-base, folder).

    Raises SystemExit with one line when the folder has no library or the layouts do not fit it.
    """
    folder = folder or default_folder()
    paths = [os.path.join(folder, name) for name in ("libllama.so", "libggml-base.so")]
    for path in paths:
        if not os.path.exists(path):
            raise SystemExit(f"llama.py: no {path}: run tools/peers/setup.sh, and this script with "
                             "that environment's bin/python")
    try:
        lib, base = (ctypes.CDLL(path) for path in paths)
        for target, table in ((lib, _SIGNATURES), (base, _BASE_SIGNATURES)):
            for name, (result, arguments) in table.items():
                function = getattr(target, name)
                function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as exc:
        raise SystemExit(f"llama.py: cannot use the libraries in {folder}: {exc}") from exc
    _check_layout(lib)
    return lib, base, folder


def _check_layout(lib):
    """Refuses a library whose default parameters do not read as the documented defaults."""
    ctx, model = lib.llama_context_default_params(), lib.llama_model_default_params()
    seen = {
        "n_batch": (ctx.n_batch, 2048), "n_ubatch": (ctx.n_ubatch, 512),
        "n_seq_max": (ctx.n_seq_max, 1), "flash_attn_type": (ctx.flash_attn_type, -1),
        "type_k": (ctx.type_k, 1), "type_v": (ctx.type_v, 1),
        "offload_kqv": (ctx.offload_kqv, True), "kv_unified": (ctx.kv_unified, False),
        "n_samplers": (ctx.n_samplers, 0), "use_extra_bufts": (model.use_extra_bufts, True),
        "vocab_only": (model.vocab_only, False), "no_alloc": (model.no_alloc, False),
    }
    wrong = [f"{k} = {a}, expected {b}" for k, (a, b) in seen.items() if a != b]
    if wrong:
        raise SystemExit("llama.py: struct layouts in tools/peers/capi.py do not fit this llama.cpp "
                         f"({'; '.join(wrong)}): install the pinned one with tools/peers/setup.sh")
