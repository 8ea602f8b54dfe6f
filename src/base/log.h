/* SPDX-License-Identifier: Apache-2.0
 * base/log.h - log lines in Triton's format.
 *
 * Purpose   Levels error, warning, info, verbose(n); default format
 *           "I1121 10:20:30.123456 4242 file.c:12] text" or ISO 8601. A message is one line:
 *           control characters in it, except tabs, are written as \n, \r and \u00XX.
 * Errors    A line that finds no room for a second, because nobody reads the pipe behind stderr, is
 *           dropped, and so is each that follows until there is room; then their number is told. So is a line
 *           of a log file on a full disk; stderr is told when that begins.
 * Owner     Any thread; no lock is held while a line is written. The sink is replaceable: inside a foreign server our plug-ins log
 *           through its API (TRITONSERVER_LogMessage).
 * Source    Line form: Triton Inference Server, default and ISO8601 log formats.
 */
#ifndef NRD_BASE_LOG_H
#define NRD_BASE_LOG_H

#include "base/error.h"

#include <stdbool.h>

typedef enum {
    NRD_LOG_LEVEL_ERROR = 0,
    NRD_LOG_LEVEL_WARNING = 1,
    NRD_LOG_LEVEL_INFO = 2,
    NRD_LOG_LEVEL_VERBOSE = 3,
} nrd_log_level;

typedef enum { NRD_LOG_FORMAT_DEFAULT = 0, NRD_LOG_FORMAT_ISO8601 = 1 } nrd_log_format;

/* Called with a finished message (no newline). Must be thread-safe. */
typedef void (*nrd_log_sink)(void *user, nrd_log_level level, const char *file, int line,
                             const char *message);

void nrd_log_set_sink(nrd_log_sink sink, void *user); /* NULL: back to stderr or the log file */
void nrd_log_enable(nrd_log_level level, bool on);    /* error, warning, info */
bool nrd_log_is_enabled(nrd_log_level level);
void nrd_log_set_verbose(int n); /* 0 = off */
int nrd_log_verbose(void);
void nrd_log_set_format(nrd_log_format format);
nrd_log_format nrd_log_get_format(void);
nrd_error *nrd_log_set_file(const char *path) NRD_MUST_USE; /* "" or NULL: stderr */

void nrd_log_write(nrd_log_level level, const char *file, int line, const char *fmt, ...)
    NRD_PRINTF(4, 5);
/* The same for text of several lines (a table), which begins on a line of its own. Whoever makes it sees
 * to it that no line of it comes from outside. */
void nrd_log_write_lines(nrd_log_level level, const char *file, int line, const char *text);
/* Writes `text` as it is (tables), with a newline, to the same place. */
void nrd_log_raw(const char *text);

#define NRD_LOG_AT_(lvl, ...)                                                                      \
    do {                                                                                           \
        if (nrd_log_is_enabled(lvl)) {                                                             \
            nrd_log_write(lvl, __FILE__, __LINE__, __VA_ARGS__);                                   \
        }                                                                                          \
    } while (0)
#define NRD_LOG_INFO_LINES(text)                                                                   \
    do {                                                                                           \
        if (nrd_log_is_enabled(NRD_LOG_LEVEL_INFO)) {                                              \
            nrd_log_write_lines(NRD_LOG_LEVEL_INFO, __FILE__, __LINE__, text);                     \
        }                                                                                          \
    } while (0)
#define NRD_LOG_ERROR(...) NRD_LOG_AT_(NRD_LOG_LEVEL_ERROR, __VA_ARGS__)
#define NRD_LOG_WARN(...) NRD_LOG_AT_(NRD_LOG_LEVEL_WARNING, __VA_ARGS__)
#define NRD_LOG_INFO(...) NRD_LOG_AT_(NRD_LOG_LEVEL_INFO, __VA_ARGS__)
#define NRD_LOG_VERBOSE(n, ...)                                                                    \
    do {                                                                                           \
        if (nrd_log_verbose() >= (n)) {                                                            \
            nrd_log_write(NRD_LOG_LEVEL_VERBOSE, __FILE__, __LINE__, __VA_ARGS__);                 \
        }                                                                                          \
    } while (0)

#endif
