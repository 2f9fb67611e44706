/* Scalar functions that must be ours: not written yet. */
#include "kernel/kernel.h"
