/* Encoding and decoding of block formats. See codec.h. */
#include "tensor/codec.h"
