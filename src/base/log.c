#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static FILE *file_out;        /* guarded by mu; NULL = stderr */
static nrd_log_sink log_sink; /* guarded by mu */
static void *sink_user;       /* guarded by mu */
static atomic_int enabled[3] = {1, 1, 1};
static atomic_int verbose_level;
static atomic_int line_format;

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
    FILE *f = NULL;
    if (path && *path) {
        f = fopen(path, "ae");
        if (!f) {
            return nrd_errorf(NRD_ERR_INTERNAL, "cannot open log file '%s': %s", path,
                              strerror(errno));
        }
    }
    pthread_mutex_lock(&mu);
    if (file_out) {
        fclose(file_out);
    }
    file_out = f;
    pthread_mutex_unlock(&mu);
    return NULL;
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

void nrd_log_write(nrd_log_level level, const char *file, int line, const char *fmt, ...)
{
    char *message = NULL;
    char prefix[256];
    va_list args;

    va_start(args, fmt);
    int n = vasprintf(&message, fmt, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    pthread_mutex_lock(&mu);
    nrd_log_sink sink = log_sink;
    void *user = sink_user;
    if (!sink) {
        FILE *out = file_out ? file_out : stderr;
        format_prefix(prefix, sizeof prefix, level, file, line);
        fprintf(out, "%s%s\n", prefix, message);
        fflush(out);
    }
    pthread_mutex_unlock(&mu);
    if (sink) { /* outside the lock: a sink may log again or block */
        sink(user, level, file, line, message);
    }
    free(message);
}

void nrd_log_raw(const char *text)
{
    pthread_mutex_lock(&mu);
    FILE *out = file_out ? file_out : stderr;
    fprintf(out, "%s\n", text);
    fflush(out);
    pthread_mutex_unlock(&mu);
}
