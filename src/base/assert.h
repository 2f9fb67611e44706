/* Assertions for programmer errors; never for files, the network or users.
 *
 * FERRY_ASSERT is always on and cheap, FERRY_DCHECK is on in debug and sanitizer builds. */
#ifndef BASE_ASSERT_H
#define BASE_ASSERT_H

/* Prints the failed condition to stderr and aborts. */
_Noreturn void assert_fail(const char *condition, const char *file, int line);

#define FERRY_ASSERT(condition) \
    ((condition) ? (void)0 : assert_fail(#condition, __FILE__, __LINE__))

#ifdef FERRY_DEBUG
#define FERRY_DCHECK(condition) FERRY_ASSERT(condition)
#else
#define FERRY_DCHECK(condition) ((void)sizeof(condition))
#endif

#endif
