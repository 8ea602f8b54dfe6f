/* SPDX-License-Identifier: Apache-2.0
 * base/error.h - how functions that can fail say so.
 *
 * Purpose   A function that can fail returns nrd_error *: NULL is success, else an owned object
 *           with a code and a message written for the user (expected, got, where).
 * Owner     An error belongs to the function that received it. Not shared between threads.
 * Errors    Codes are numerically equal to TRITONSERVER_Error_Code but for NO_MEMORY, which it does
 *           not have: nrd_error_triton_code. When memory runs out a static error object with that
 *           code is returned; freeing it is a no-op.
 * Lifetime  nrd_error_free() once; NULL is fine.
 */
#ifndef NRD_BASE_ERROR_H
#define NRD_BASE_ERROR_H

#include "nereid/export.h"

#include <stdarg.h>

typedef struct nrd_error nrd_error;

typedef enum {
    NRD_ERR_UNKNOWN = 0,
    NRD_ERR_INTERNAL = 1,
    NRD_ERR_NOT_FOUND = 2,
    NRD_ERR_INVALID_ARG = 3,
    NRD_ERR_UNAVAILABLE = 4,
    NRD_ERR_UNSUPPORTED = 5,
    NRD_ERR_ALREADY_EXISTS = 6,
    NRD_ERR_CANCELLED = 7,
    NRD_ERR_NO_MEMORY = 8, /* of the host; UNAVAILABLE for those outside */
    NRD_ERR_UNAUTHENTICATED = 9, /* no key, or a wrong one; of front ends only */
} nrd_error_code;

#define NRD_MUST_USE __attribute__((warn_unused_result))
#define NRD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Makes an error. Never returns NULL. */
NRD_API nrd_error *nrd_errorf(nrd_error_code code, const char *fmt, ...) NRD_PRINTF(2, 3) NRD_MUST_USE;
NRD_API nrd_error *nrd_errorv(nrd_error_code code, const char *fmt, va_list args) NRD_MUST_USE;

/* The error for a failed allocation of `size_bytes`; static, never allocates. */
NRD_API nrd_error *nrd_error_no_memory(void) NRD_MUST_USE;

/* Puts "<context>: " in front of the message. Takes `err` always; NULL stays NULL. */
NRD_API nrd_error *nrd_error_wrap(nrd_error *err, const char *fmt, ...) NRD_PRINTF(2, 3) NRD_MUST_USE;

/* What the message is about, for programs. Both take `err` always and give it back; NULL stays NULL.
 * field: the field of a request, copied; the first one that is named stays, as the innermost knows best.
 * reason: one word, which must live as long as the program. */
NRD_API nrd_error *nrd_error_at(nrd_error *err, const char *field) NRD_MUST_USE;
NRD_API nrd_error *nrd_error_because(nrd_error *err, const char *reason) NRD_MUST_USE;
NRD_API const char *nrd_error_field(const nrd_error *err);  /* NULL: none; borrows */
NRD_API const char *nrd_error_reason(const nrd_error *err); /* NULL: none */

NRD_API nrd_error_code nrd_error_get_code(const nrd_error *err);
NRD_API const char *nrd_error_message(const nrd_error *err); /* borrows until err is freed */
NRD_API void nrd_error_free(nrd_error *err);

/* As a TRITONSERVER_Error_Code. */
static inline int nrd_error_triton_code(const nrd_error *err)
{
    nrd_error_code code = nrd_error_get_code(err);
    return code == NRD_ERR_NO_MEMORY         ? NRD_ERR_UNAVAILABLE
           : code == NRD_ERR_UNAUTHENTICATED ? NRD_ERR_INVALID_ARG
                                             : (int)code;
}

/* Passes an error up. Use where nothing is held. */
#define NRD_TRY(expr)                                                                              \
    do {                                                                                           \
        nrd_error *nrd_try_err_ = (expr);                                                          \
        if (nrd_try_err_) {                                                                        \
            return nrd_try_err_;                                                                   \
        }                                                                                          \
    } while (0)

/* Stores an error in `err` and jumps. Use where there is something to undo. */
#define NRD_TRY_GOTO(expr, err, label)                                                             \
    do {                                                                                           \
        (err) = (expr);                                                                            \
        if (err) {                                                                                 \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Invariants only, never input: stays on in release builds, prints and aborts. */
#define NRD_ASSERT(cond, why)                                                                      \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            nrd_assert_fail(#cond, why, __FILE__, __LINE__, __func__);                             \
        }                                                                                          \
    } while (0)
NRD_API void nrd_assert_fail(const char *cond, const char *why, const char *file, int line,
                     const char *func) __attribute__((noreturn, cold));

#endif
