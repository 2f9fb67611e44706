/* Reading a tokenizer from GGUF metadata. See from_gguf.c. Nobody outside `text` includes this. */
#ifndef TEXT_FROM_GGUF_H
#define TEXT_FROM_GGUF_H

#include "file/gguf.h"
#include "text/tokenizer_impl.h"

/* Errors: FERRY_ERR_NOT_FOUND (no tokenizer keys), FERRY_ERR_FORMAT, FERRY_ERR_UNSUPPORTED (names
 * the kind), FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status tokenizer_from_gguf(struct tokenizer **ret_tokenizer,
                                      const struct gguf_meta *meta,
                                      struct ferry_error *err) FERRY_MUST_CHECK;

#endif
