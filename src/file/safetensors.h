/* The safetensors header, checked completely.
 *
 * Why here: checkpoint.c joins files, this reads one. It works on a memory range, so that tests and
 * the fuzzer need no file. It must not know names of tensors. */
#ifndef FILE_SAFETENSORS_H
#define FILE_SAFETENSORS_H

#include "base/arena.h"
#include "file/checkpoint.h"

/* The tensors of one file: items and names live in the arena that was given, data in the file. */
struct tensor_list {
    struct checkpoint_tensor *items;
    size_t count;
};

/* Reads the header in mem[0, size) and checks that the tensors tile the rest exactly. Reads no
 * tensor data. `file` is the name for messages; it and mem must outlive the list, which is in
 * offset order. Errors: FERRY_ERR_FORMAT, FERRY_ERR_UNSUPPORTED (a dtype other than F32, F16,
 * BF16), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. Source: the safetensors reference implementation. */
enum ferry_status safetensors_parse(struct tensor_list *ret_list, struct arena *arena,
                                    const void *mem, size_t size, const char *file,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

#endif
