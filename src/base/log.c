/* SPDX-License-Identifier: Apache-2.0
 * Log lines: prefix, text, one write for each line, to stderr, a file, or the function of a hosting
 * server. The file is counted, so that a line can be written without a lock while another file
 * takes its place. When the reader of a pipe stops, a line waits a second; then lines are dropped
 * and counted. So are those that find no room on the disk, and stderr is told once. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A file that lines go to; counted, so that a line is written without the lock while another file is
 * set. */
typedef struct target {
    int fd;
    bool own;    /* closed with the last count */
    bool is_regular;
    atomic_bool is_cut;  /* its last line has no end */
    atomic_bool is_full; /* and stderr was told */
    size_t most; /* bytes of one write: of a pipe what it takes at once when it has room at all */
    atomic_int refs;
} target;

#define ROOM_MS 1000 /* how long a line waits for a reader before it is dropped */

static target to_stderr = {.fd = STDERR_FILENO, .most = PIPE_BUF, .refs = 1}; /* its own count stays */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static target *file_out = &to_stderr; /* guarded by mu; the pointer shares */
static nrd_log_sink log_sink;         /* guarded by mu */
static void *sink_user;               /* guarded by mu */
static atomic_ulong n_dropped;        /* lines since the last one that was written */
static atomic_int enabled[3] = {1, 1, 1};
static atomic_int verbose_level;
static atomic_int line_format;

static void target_unref(target *t)
{
    if (atomic_fetch_sub(&t->refs, 1) == 1 && t->own) {
        close(t->fd);
        free(t);
    }
}

void nrd_log_set_sink(nrd_log_sink sink, void *user)
{
    pthread_mutex_lock(&mu);
    log_sink = sink;
    sink_user = user;
    pthread_mutex_unlock(&mu);
}

void nrd_log_enable(nrd_log_level level, bool on)
{
    if (level < NRD_LOG_LEVEL_VERBOSE) {
        atomic_store(&enabled[level], on);
    }
}

bool nrd_log_is_enabled(nrd_log_level level)
{
    return level < NRD_LOG_LEVEL_VERBOSE ? atomic_load(&enabled[level]) != 0
                                         : atomic_load(&verbose_level) > 0;
}

void nrd_log_set_verbose(int n)
{
    atomic_store(&verbose_level, n);
}

int nrd_log_verbose(void)
{
    return atomic_load(&verbose_level);
}

void nrd_log_set_format(nrd_log_format format)
{
    atomic_store(&line_format, (int)format);
}

nrd_log_format nrd_log_get_format(void)
{
    return (nrd_log_format)atomic_load(&line_format);
}

nrd_error *nrd_log_set_file(const char *path)
{
    target *t = &to_stderr;
    struct stat st;

    if (path && *path) {
        t = calloc(1, sizeof *t);
        if (!t) {
            return nrd_error_no_memory();
        }
        t->own = true;
        t->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (t->fd < 0) {
            free(t);
            return nrd_errorf(NRD_ERR_INTERNAL, "cannot open log file '%s': %s", path,
                              strerror(errno));
        }
        t->is_regular = fstat(t->fd, &st) == 0 && S_ISREG(st.st_mode);
        t->most = t->is_regular ? SIZE_MAX : PIPE_BUF;
    }
    atomic_fetch_add(&t->refs, 1);
    pthread_mutex_lock(&mu);
    target *old = file_out;
    file_out = t;
    pthread_mutex_unlock(&mu);
    target_unref(old);
    return NULL;
}

/* Only once until a line finds room again: who reads stderr is not told for each line. */
static void tell_full(target *t, int reason)
{
    char note[128];

    if (!atomic_exchange(&t->is_full, true)) {
        const int n = snprintf(note, sizeof note, "cannot write the log file: %s; its lines are dropped until there is room\n",
                               strerror(reason));
        (void)!write(STDERR_FILENO, note, (size_t)n);
    }
}

/* false: the reader, or who fills the disk, made no room in time. The first line waits for a reader, those behind it do not, so
 * that a thread that logs much is not delayed by each line. */
static bool write_all(target *t, const char *text, size_t n)
{
    const size_t whole = n;

    while (n > 0) {
        struct pollfd p = {.fd = t->fd, .events = POLLOUT};
        if (t->most < SIZE_MAX && poll(&p, 1, atomic_load(&n_dropped) ? 0 : ROOM_MS) == 0) {
            return false;
        }
        ssize_t w = write(t->fd, text, n < t->most ? n : t->most);
        if (w < 0 && t->is_regular && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)) {
            tell_full(t, errno);
            atomic_store(&t->is_cut, n < whole || atomic_load(&t->is_cut));
            return false;
        }
        if (w < 0 && errno != EINTR && errno != EAGAIN) {
            return true; /* a closed target: nobody could be told */
        }
        text += w > 0 ? w : 0;
        n -= w > 0 ? (size_t)w : 0;
    }
    atomic_store(&t->is_full, false);
    return true;
}

/* One write for a line, so that lines of several threads do not mix. */
static void put(const char *text, size_t n)
{
    char note[96];

    pthread_mutex_lock(&mu);
    target *t = file_out;
    atomic_fetch_add(&t->refs, 1);
    pthread_mutex_unlock(&mu);
    const unsigned long lost = atomic_load(&n_dropped);
    if (atomic_exchange(&t->is_cut, false) && !write_all(t, "\n", 1)) {
        atomic_store(&t->is_cut, true);
    }
    if (!write_all(t, text, n)) {
        atomic_fetch_add(&n_dropped, 1);
    } else if (lost && atomic_compare_exchange_strong(&n_dropped, &(unsigned long){lost}, 0)) {
        const int m = snprintf(note, sizeof note, "(%lu log lines before this were dropped: %s)\n", lost,
                               t->is_regular ? "the disk was full" : "nobody read them");
        (void)write_all(t, note, (size_t)m);
    }
    target_unref(t);
}

static void format_prefix(char *buf, size_t size, nrd_log_level level, const char *file, int line)
{
    static const char letters[] = "EWII"; /* verbose lines are info lines, as in Triton */
    struct timeval tv;
    struct tm tm;
    const char *base = strrchr(file, '/');

    base = base ? base + 1 : file;
    gettimeofday(&tv, NULL);
    gmtime_r(&tv.tv_sec, &tm);
    if (nrd_log_get_format() == NRD_LOG_FORMAT_DEFAULT) {
        snprintf(buf, size, "%c%02d%02d %02d:%02d:%02d.%06ld %d %s:%d] ", letters[level],
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (long)tv.tv_usec,
                 (int)getpid(), base, line);
    } else {
        snprintf(buf, size, "%04d-%02d-%02dT%02d:%02d:%02dZ %c %d %s:%d] ", tm.tm_year + 1900,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, letters[level],
                 (int)getpid(), base, line);
    }
}

/* Bytes of a control character at `p`: of ASCII 1, of the second range (U+0080 to U+009F, to which
 * terminals listen too) 2; 0: it is none. */
static size_t control_bytes(const unsigned char *p)
{
    return p[0] < 0x20 || p[0] == 0x7f ? 1 : p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f ? 2 : 0;
}

static size_t bytes_to_write_out(const unsigned char *p, bool keep_lines)
{
    return *p == '\t' || (keep_lines && *p == '\n') ? 0 : control_bytes(p);
}

/* Names and identifiers of clients come into messages: none of them may begin a line of its own or
 * speak to the terminal. Takes `text`; gives an owned copy where something had to be written out. */
static char *escape(char *text, bool keep_lines)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 0, n_control = 0;

    for (; p[n]; n++) {
        n_control += bytes_to_write_out(p + n, keep_lines) > 0;
    }
    char *out = n_control ? malloc(n + 5 * n_control + 1) : NULL, *to = out;
    if (!out) {
        for (char *c = text; n_control && *c; c++) { /* no memory: the line all the same */
            *c = bytes_to_write_out((const unsigned char *)c, keep_lines) ? ' ' : *c;
        }
        return text;
    }
    while (*p) {
        const size_t k = bytes_to_write_out(p, keep_lines);
        const unsigned char c = p[k == 2];
        if (k == 0) {
            *to++ = (char)*p;
        } else if (c == '\n' || c == '\r') {
            *to++ = '\\';
            *to++ = c == '\n' ? 'n' : 'r';
        } else {
            memcpy(to, "\\u00", 4);
            to[4] = hex[c >> 4];
            to[5] = hex[c & 15];
            to += 6;
        }
        p += k ? k : 1;
    }
    *to = '\0';
    free(text);
    return out;
}

/* Takes `message`. */
static void write_message(nrd_log_level level, const char *file, int line, char *message,
                          bool keep_lines)
{
    char *whole = NULL;
    char prefix[256];

    message = escape(message, keep_lines);
    pthread_mutex_lock(&mu);
    nrd_log_sink sink = log_sink;
    void *user = sink_user;
    pthread_mutex_unlock(&mu);
    if (sink) {
        sink(user, level, file, line, message);
    } else {
        format_prefix(prefix, sizeof prefix, level, file, line);
        int n = asprintf(&whole, "%s%s\n", prefix, message);
        if (n >= 0) {
            put(whole, (size_t)n);
            free(whole);
        }
    }
    free(message);
}

void nrd_log_write(nrd_log_level level, const char *file, int line, const char *fmt, ...)
{
    char *message = NULL;
    va_list args;

    va_start(args, fmt);
    int n = vasprintf(&message, fmt, args);
    va_end(args);
    if (n >= 0) {
        write_message(level, file, line, message, false);
    }
}

void nrd_log_write_lines(nrd_log_level level, const char *file, int line, const char *text)
{
    char *message = NULL;
    if (asprintf(&message, "\n%s", text) >= 0) {
        write_message(level, file, line, message, true);
    }
}

void nrd_log_raw(const char *text)
{
    char *whole = NULL;
    int n = asprintf(&whole, "%s\n", text);
    if (n >= 0) {
        put(whole, (size_t)n);
        free(whole);
    }
}
