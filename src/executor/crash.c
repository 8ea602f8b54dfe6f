/* SPDX-License-Identifier: Apache-2.0
 * Everything that needs memory is made when the handler is installed. The handler itself calls the system,
 * reads what is there, and takes no lock: the thread that died may hold any. Only the unwinder is others'
 * code; a fault in it ends the backtrace, not the report. */
#include "nereid/crash.h"

#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/record.h"
#include "nereid/executor.h"

#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { MAX_FRAMES = 64, MAPS_BYTES = 512 << 10, PATH_BYTES = 4096 };

static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static struct sigaction before[N_SIGNALS];
static char dir[PATH_BYTES];
static char *options_text; /* program and options, made at start */
static char build_ids[512];
static const char *version_text;
static char maps[MAPS_BYTES];
static atomic_int owner; /* thread that writes the report; 0: none */
static sigjmp_buf out_of_backtrace;
static volatile sig_atomic_t in_backtrace;
static int report_fd = -1;

/* ---- writing without help ---- */

static void put_bytes(int fd, const char *s, size_t n)
{
    while (n > 0) {
        const ssize_t k = write(fd, s, n);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return;
        }
        s += k;
        n -= (size_t)k;
    }
}

static void put(int fd, const char *s)
{
    put_bytes(fd, s, strlen(s));
}

static const char *digits(uint64_t v, unsigned base, char out[24])
{
    char *p = out + 23;
    *p = '\0';
    do {
        *--p = "0123456789abcdef"[v % base];
        v /= base;
    } while (v > 0);
    return p;
}

static void put_u(int fd, uint64_t v)
{
    char s[24];
    put(fd, digits(v, 10, s));
}

static void put_i(int fd, int64_t v)
{
    if (v < 0) {
        put(fd, "-");
    }
    put_u(fd, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

static void put_x(int fd, uint64_t v)
{
    char s[24];
    put(fd, "0x");
    put(fd, digits(v, 16, s));
}

/* Three places are enough for temperatures and shares. */
static void put_f(int fd, float v)
{
    char s[24];
    if (!(v > -1e9f && v < 1e9f)) {
        put(fd, "?");
        return;
    }
    const int64_t thousandths = (int64_t)(v * 1000.0f);
    const uint64_t all = thousandths < 0 ? -(uint64_t)thousandths : (uint64_t)thousandths;
    put(fd, thousandths < 0 ? "-" : "");
    put_u(fd, all / 1000);
    put(fd, ".");
    put(fd, digits(1000 + all % 1000, 10, s) + 1);
}

/* Adds text to what fits. */
static char *join(char *to, const char *end, const char *text)
{
    while (*text && to < end) {
        *to++ = *text++;
    }
    *to = '\0';
    return to;
}

/* ---- modules ---- */

static size_t read_maps(void)
{
    size_t n = 0;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n < sizeof maps - 1) {
        const ssize_t k = read(fd, maps + n, sizeof maps - 1 - n);
        if (k <= 0) {
            break;
        }
        n += (size_t)k;
    }
    if (fd >= 0) {
        close(fd);
    }
    maps[n] = '\0';
    return n;
}

static uint64_t hex_at(const char **p)
{
    uint64_t v = 0;
    for (;; (*p)++) {
        const char c = **p;
        if (c >= '0' && c <= '9') {
            v = v << 4 | (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            v = v << 4 | (uint64_t)(c - 'a' + 10);
        } else {
            return v;
        }
    }
}

/* "module+0x123" of an address, from lines "start-end perms offset dev inode path". */
static void put_address(int fd, uint64_t at)
{
    for (const char *line = maps; *line;) {
        const char *end = strchrnul(line, '\n'), *p = line;
        const uint64_t first = hex_at(&p);
        p += *p == '-';
        const uint64_t last = hex_at(&p);
        if (at >= first && at < last) {
            while (p < end && *p == ' ') {
                p++;
            }
            while (p < end && *p != ' ') { /* permissions */
                p++;
            }
            p += p < end;
            const uint64_t offset = hex_at(&p);
            const char *name = memchr(p, '/', (size_t)(end - p));
            const char *base = name;
            for (const char *s = name; s && s < end; s++) {
                base = *s == '/' ? s + 1 : base;
            }
            if (base) {
                put_bytes(fd, base, (size_t)(end - base));
                put(fd, "+");
                put_x(fd, at - first + offset);
                return;
            }
            break;
        }
        line = *end ? end + 1 : end;
    }
    put_x(fd, at);
}

/* ---- sections ---- */

static void put_threads(int fd)
{
    char list[4096], path[64], name[64], s[24];
    const int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    put(fd, "\nthreads\n");
    while (folder >= 0 && (n = syscall(SYS_getdents64, folder, list, sizeof list)) > 0) {
        for (long at = 0; at < n;) {
            /* struct linux_dirent64: inode 8, offset 8, length 2, type 1, name */
            uint16_t length;
            memcpy(&length, list + at + 16, sizeof length);
            const char *id = list + at + 19;
            at += length;
            if (id[0] < '1' || id[0] > '9' || strlen(id) > 20) {
                continue;
            }
            char *to = join(path, path + sizeof path - 1, "/proc/self/task/");
            to = join(to, path + sizeof path - 1, id);
            join(to, path + sizeof path - 1, "/comm");
            const int comm = open(path, O_RDONLY | O_CLOEXEC);
            const ssize_t k = comm >= 0 ? read(comm, name, sizeof name - 1) : 0;
            if (comm >= 0) {
                close(comm);
            }
            put(fd, "  ");
            put(fd, id);
            put(fd, strcmp(id, digits((uint64_t)atomic_load(&owner), 10, s)) == 0 ? " * " : "   ");
            put_bytes(fd, name, k > 0 ? (size_t)k : 0);
            if (k <= 0) {
                put(fd, "\n");
            }
        }
    }
    if (folder >= 0) {
        close(folder);
    }
}

static void put_request(int fd, const char *name, const nrd_record_add *a)
{
    put(fd, "  ");
    put(fd, name);
    put(fd, ": request ");
    put_u(fd, a->request);
    put(fd, " sequence ");
    put_u(fd, a->seq);
    put(fd, ": prompt ");
    put_i(fd, a->n_prompt);
    put(fd, ", at most ");
    put_i(fd, (int64_t)a->max_total - a->n_prompt);
    put(fd, " new, width ");
    put_i(fd, a->width);
    put(fd, ", temperature ");
    put_f(fd, a->temperature);
    put(fd, ", top_k ");
    put_i(fd, a->top_k);
    put(fd, ", top_p ");
    put_f(fd, a->top_p);
    put(fd, ", repetition_penalty ");
    put_f(fd, a->repetition_penalty);
    put(fd, ", priority ");
    put_f(fd, a->priority);
    put(fd, ", stop ");
    put_i(fd, a->n_stop);
    put(fd, ", bad ");
    put_i(fd, a->n_bad);
    put(fd, a->flags & NRD_RECORD_GUIDED ? ", guide" : "");
    put(fd, a->flags & NRD_RECORD_ADAPTER ? ", adapter" : "");
    put(fd, a->flags & NRD_RECORD_NO_SAMPLE ? ", prompt only" : "");
    put(fd, "\n");
}

static uint64_t program_counter(const void *context)
{
    const ucontext_t *c = context;
#if defined(__x86_64__)
    return (uint64_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uint64_t)c->uc_mcontext.pc;
#else
    (void)c;
    return 0;
#endif
}

/* The unwinder finds modules without a lock from glibc 2.35 on; before, it could wait for ever. */
static void put_backtrace(int fd)
{
    put(fd, "\nbacktrace\n");
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 35)
    static void *frames[MAX_FRAMES];
    if (sigsetjmp(out_of_backtrace, 1) == 0) {
        in_backtrace = 1;
        const int n = backtrace(frames, MAX_FRAMES);
        for (int i = 0; i < n; i++) {
            put(fd, "  ");
            put_address(fd, (uint64_t)(uintptr_t)frames[i]);
            put(fd, "\n");
        }
    } else {
        put(fd, "  (a second fault ended it)\n");
    }
    in_backtrace = 0;
#else
    put(fd, "  (this C library has none that is safe here)\n");
#endif
}

static const char *name_of(int sig)
{
    return sig == SIGSEGV ? "SIGSEGV" : sig == SIGBUS ? "SIGBUS" : sig == SIGABRT ? "SIGABRT" : sig == SIGFPE ? "SIGFPE" : "SIGILL";
}

static void put_head(int fd, int sig, const siginfo_t *info, const void *context)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    put(fd, "Nereid crash report\nversion ");
    put(fd, version_text);
    put(fd, "\nbuild-id ");
    put(fd, build_ids);
    put(fd, "\nsignal ");
    put(fd, name_of(sig));
    put(fd, " code ");
    put_i(fd, info->si_code);
    put(fd, " address ");
    put_x(fd, info->si_code > 0 ? (uint64_t)(uintptr_t)info->si_addr : 0);
    put(fd, "\nprogram-counter ");
    put_address(fd, program_counter(context));
    put(fd, "\nprocess ");
    put_u(fd, (uint64_t)getpid());
    put(fd, " thread ");
    put_u(fd, (uint64_t)atomic_load(&owner));
    put(fd, " at ");
    put_u(fd, (uint64_t)time(NULL));
    put(fd, " s since 1970, ");
    put_u(fd, (uint64_t)t.tv_sec);
    put(fd, " s since the machine started\n\noptions\n");
    put(fd, options_text);
}

static int open_report(char path[PATH_BYTES + 64])
{
    char s[24], *to = path;
    const char *end = path + PATH_BYTES + 63;
    to = join(to, end, dir);
    to = join(to, end, "/crash-");
    to = join(to, end, digits((uint64_t)time(NULL), 10, s));
    to = join(to, end, "-");
    join(to, end, digits((uint64_t)getpid(), 10, s));
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void write_report(int sig, const siginfo_t *info, const void *context)
{
    static char path[PATH_BYTES + 64];
    static const char line_ends[] = "\n\n\n\n\n\n\n\n";
    const int fd = open_report(path);

    if (fd < 0) {
        put(2, "no crash report: ");
        put(2, path);
        put(2, " cannot be made\n");
        return;
    }
    report_fd = fd;
    read_maps();
    put_head(fd, sig, info, context);
    put_threads(fd);
    put(fd, "\nlast requests of the language models\n");
    nrd_record_write_requests(fd, put_request);
    put_backtrace(fd);
    put(fd, "\nWhat follows is not text: the schedulers' records, for nereid repro.\n");
    for (int i = 0; i < nrd_record_slots(); i++) {
        /* Heads lie on multiples of eight. */
        const off_t at = lseek(fd, 0, SEEK_CUR) + (off_t)sizeof NRD_RECORD_MARK - 1;
        put_bytes(fd, line_ends, (size_t)((8 - at % 8) % 8));
        nrd_record_write(fd, i);
    }
    close(fd);
    put(2, name_of(sig));
    put(2, ": crash report in ");
    put(2, path);
    put(2, "\n");
}

/* ---- the handler ---- */

static void leave_to_the_system(int sig, const siginfo_t *info)
{
    for (int i = 0; i < N_SIGNALS; i++) {
        if (signals[i] == sig) {
            sigaction(sig, &before[i], NULL);
        }
    }
    if (info->si_code <= 0) { /* sent, not a fault that comes again on return */
        raise(sig);
    }
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    const int self = (int)syscall(SYS_gettid), saved = errno;
    int none = 0;

    if (!atomic_compare_exchange_strong(&owner, &none, self)) {
        if (none == self) {
            if (in_backtrace) {
                siglongjmp(out_of_backtrace, 1);
            }
            leave_to_the_system(sig, info); /* a fault while the report is written */
            return;
        }
        for (int i = 0; i < 100; i++) { /* another thread writes; it ends the process */
            nanosleep(&(struct timespec){0, 100000000}, NULL);
        }
        leave_to_the_system(sig, info);
        return;
    }
    write_report(sig, info, context);
    leave_to_the_system(sig, info);
    errno = saved;
}

/* ---- at start ---- */

static int find_build_id(struct dl_phdr_info *m, size_t size, void *user)
{
    nrd_str *out = user;
    (void)size;
    for (int i = 0; i < m->dlpi_phnum; i++) {
        if (m->dlpi_phdr[i].p_type != PT_NOTE) {
            continue;
        }
        const char *p = (const char *)(m->dlpi_addr + m->dlpi_phdr[i].p_vaddr), *end = p + m->dlpi_phdr[i].p_memsz;
        while (p + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)(const void *)p;
            const char *name = p + sizeof *note, *desc = name + (note->n_namesz + 3u) / 4u * 4u;
            const char *file = m->dlpi_name && m->dlpi_name[0] ? strrchr(m->dlpi_name, '/') : "/program";
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(name, "GNU", 4) && file &&
                (!strcmp(file, "/program") || strstr(file, "nereid") || strstr(file, "triton"))) {
                nrd_str_printf(out, "%s%s=", out->len ? " " : "", file + 1);
                for (uint32_t k = 0; k < note->n_descsz; k++) {
                    nrd_str_printf(out, "%02x", (unsigned char)desc[k]);
                }
            }
            p = desc + (note->n_descsz + 3u) / 4u * 4u;
        }
    }
    return 0;
}

static bool is_secret(const char *word)
{
    static const char *const parts[] = {"key", "token", "restricted", "password", "secret", "header"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcasestr(word, parts[i])) {
            return true;
        }
    }
    return false;
}

static nrd_error *keep_options(const nrd_crash_config *c)
{
    nrd_str text = {0};
    bool hide = false;
    for (int i = 0; i < c->argc; i++) {
        const char *word = i == 0 ? c->program : c->argv[i], *equals = strchr(word, '=');
        const bool is_option = !strncmp(word, "-", 1), secret = i > 0 && is_option && is_secret(word);
        nrd_str_puts(&text, "  ");
        if (hide && !is_option) {
            nrd_str_puts(&text, "(left out)");
        } else if (secret && equals) {
            nrd_str_printf(&text, "%.*s=(left out)", (int)(equals - word), word);
        } else {
            nrd_str_puts(&text, word);
        }
        nrd_str_puts(&text, "\n");
        hide = secret && !equals;
    }
    options_text = nrd_str_steal(&text);
    return options_text ? NULL : nrd_error_no_memory();
}

/* The name of a report, "crash-<seconds>-<process>", sorts by its time. */
static nrd_error *make_room(int32_t keep)
{
    char **names = NULL;
    size_t n = 0, n_reports = 0;
    nrd_error *err = nrd_dir_list(&names, &n, dir);
    for (size_t i = 0; !err && i < n; i++) {
        n_reports += !strncmp(names[i], "crash-", 6);
    }
    for (size_t i = 0; !err && i < n && n_reports >= (size_t)keep; i++) { /* the list is sorted */
        if (!strncmp(names[i], "crash-", 6)) {
            char *path = nrd_path_join(dir, names[i]);
            (void)unlink(path);
            free(path);
            n_reports--;
        }
    }
    nrd_names_free(names, n);
    return err;
}

static nrd_error *choose_dir(const char *asked)
{
    char *cache = asked ? NULL : nrd_or_end(nrd_env_cache_dir());
    char *wanted = asked ? nrd_xstrdup(asked) : nrd_path_join(cache, "crashes");
    nrd_error *err = nrd_mkdirs(wanted);
    if (!err && access(wanted, W_OK) != 0) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "crash reports: '%s': %s", wanted, strerror(errno));
    }
    if (err && !asked) {
        nrd_error_free(err);
        err = NULL;
        free(wanted);
        wanted = nrd_xstrdup(nrd_env("TMPDIR", "/tmp"));
    }
    char *whole = err ? NULL : realpath(wanted, NULL); /* the program may change its folder */
    if (!err && (!whole || strlen(whole) >= sizeof dir)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "crash reports: '%s' cannot be used", wanted);
    }
    if (!err) {
        memcpy(dir, whole, strlen(whole) + 1);
    }
    free(whole);
    free(wanted);
    free(cache);
    return err;
}

nrd_error *nrd_crash_install(const nrd_crash_config *c)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    nrd_str ids = {0};
    void *frames[2];

    NRD_TRY(choose_dir(c->dir));
    NRD_TRY(make_room(c->keep));
    NRD_TRY(keep_options(c));
    version_text = nrd_version();
    (void)dl_iterate_phdr(find_build_id, &ids);
    snprintf(build_ids, sizeof build_ids, "%s", nrd_str_cstr(&ids));
    nrd_str_fini(&ids);
    (void)backtrace(frames, 2); /* what it needs is loaded now */
    enum { STACK_BYTES = 64 << 10 };
    static char *stack_memory;
    stack_memory = nrd_xcalloc(1, STACK_BYTES);
    const stack_t stack = {.ss_sp = stack_memory, .ss_size = STACK_BYTES};
    (void)sigaltstack(&stack, NULL);
    sigemptyset(&action.sa_mask);
    (void)setenv(NRD_CRASH_DIR_VARIABLE, dir, 1);
    for (int i = 0; i < N_SIGNALS; i++) {
        if (sigaction(signals[i], &action, &before[i]) != 0) {
            return nrd_errorf(NRD_ERR_INTERNAL, "crash reports: %s", strerror(errno));
        }
    }
    return NULL;
}
