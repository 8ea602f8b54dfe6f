/* SPDX-License-Identifier: Apache-2.0
 * The bytes of one HTTP connection against a whole server: the reader, the routes, the requests of
 * infer, generate and shared memory, the core, two identity models. First byte: how the bytes are cut.
 * Every request that is complete is answered; answers are well-formed, errors are JSON; the same bytes
 * cut otherwise get the same statuses, errors being one; the end of the input is the end of the connection. The event loop
 * runs in the thread of the fuzzer. Orders that write files (traces, logs) are closed by an option. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "frontends/http/api.h"
#include "frontends/http/conn.h"
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 64 << 10, DEADLINE_SECS = 8, MAX_ANSWERS = 4096 };

static const char ident[] =
    "backend: \"identity\"\nmax_batch_size: 8\ninput [ { name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] }, "
    "{ name: \"TEXT\" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]\n"
    "output [ { name: \"OUT\" data_type: TYPE_INT32 dims: [ -1 ] }, "
    "{ name: \"TEXT_OUT\" data_type: TYPE_STRING dims: [ -1 ] } ]\n";
static const char generate[] =
    "backend: \"identity\"\nmodel_transaction_policy { decoupled: true }\n"
    "parameters { key: \"responses\" value { string_value: \"2\" } }\n"
    "input [ { name: \"text_input\" data_type: TYPE_STRING dims: [ 1 ] }, "
    "{ name: \"n\" data_type: TYPE_INT32 dims: [ 1 ] optional: true }, "
    "{ name: \"f\" data_type: TYPE_FP32 dims: [ -1 ] optional: true } ]\n"
    "output [ { name: \"text_output\" data_type: TYPE_STRING dims: [ 1 ] }, "
    "{ name: \"n_out\" data_type: TYPE_INT32 dims: [ 1 ] }, { name: \"f_out\" data_type: TYPE_FP32 dims: [ -1 ] } ]\n";

static nrd_options options;
static TRITONSERVER_Server *core;
static nrd_tracer *tracer;
static nrd_front *front;
static nrd_http_api *api;
static nrd_http_server http;
static nrd_http_loop *loop;

static void die(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        abort();
    }
}

static void add_model(const char *name, const char *text)
{
    char *dir = nrd_xasprintf("%s/models/%s/1", fuzz_folder(), name);
    char *file = nrd_xasprintf("%s/models/%s/config.pbtxt", fuzz_folder(), name);
    die(nrd_mkdirs(dir));
    die(nrd_file_write(file, text, strlen(text)));
    free(dir);
    free(file);
}

static void drop_region(void)
{
    shm_unlink("/nereid-fuzz-http");
}

static void start(void)
{
    char *exe = nrd_path_exe_dir();
    char *models = nrd_xasprintf("--model-repository=%s/models", fuzz_folder());
    char *backends = nrd_xasprintf("--backend-directory=%s/backends", exe);
    char *argv[] = {"fuzz", models, backends, "--log-info=false", "--log-warning=false", "--log-error=false",
                    "--http-restricted-api=trace,logging,model-repository:fuzz=closed", "--http-max-input-size=1000000",
                    "--worker-thread-count=2", NULL};
    TRITONSERVER_ServerOptions *t = NULL;
    int fd = shm_open("/nereid-fuzz-http", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0) {
        abort();
    }
    close(fd);
    atexit(drop_region);
    add_model("ident", ident);
    add_model("gen", generate);
    nrd_options_init(&options);
    die(nrd_options_parse(&options, (int)(sizeof argv / sizeof *argv) - 1, argv));
    die(nrd_options_apply_log(&options));
    die(nrd_tracer_new(&tracer, &options));
    die(nrd_from_triton(nrd_options_build(&options, &t)));
    die(nrd_from_triton(TRITONSERVER_ServerNew(&core, t)));
    TRITONSERVER_ServerOptionsDelete(t);
    die(nrd_front_new(&front, core, &options, tracer));
    die(nrd_http_api_new(&api, front));
    http.cfg = (nrd_http_config){.name = "HTTP", .max_body_bytes = (size_t)options.http_max_input_bytes,
                                 .stall_secs = 120, .min_rate = 1024, .handle = nrd_http_router_handle, .fail = nrd_http_router_fail,
                                 .user = nrd_http_api_router(api)};
    loop = nrd_xcalloc(1, sizeof *loop);
    http.loops = loop;
    http.n_loops = 1;
    die(nrd_http_loop_init(loop, &http));
    nrd_http_here = loop;
    free(exe);
    free(models);
    free(backends);
}

/* One turn of the loop, as loop.c makes them. */
static void turn(bool may_sleep)
{
    if (nrd_http_loop_fall_asleep(loop) && may_sleep) {
        event_base_loop(loop->base, EVLOOP_ONCE);
    } else {
        event_base_loop(loop->base, EVLOOP_NONBLOCK);
    }
    nrd_http_loop_run_tasks(loop);
}

/* Takes what has come. false: the server has closed. */
static bool receive(int fd, nrd_str *in)
{
    char b[16384];
    for (;;) {
        const ssize_t n = recv(fd, b, sizeof b, MSG_DONTWAIT);
        if (n > 0) {
            nrd_str_append(in, b, (size_t)n);
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            return n < 0 && errno == EAGAIN;
        }
    }
}

/* Sends the bytes, `step` at a time; gives everything that comes back until the server has closed. */
static void talk(const char *data, size_t n, size_t step, nrd_str *in)
{
    int fd[2];
    size_t sent = 0;
    const time_t begin = time(NULL);
    bool open = true, ended = false;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) != 0) {
        abort();
    }
    atomic_fetch_add(&loop->n_conns, 1);
    nrd_http_conn_new(loop, fd[0], false);
    while (open || loop->conns) {
        while (sent < n && open) {
            const size_t want = n - sent < step ? n - sent : step;
            const ssize_t m = send(fd[1], data + sent, want, MSG_NOSIGNAL);
            if (m < 0 && errno != EAGAIN) {
                sent = n; /* refused and closed */
                break;
            }
            sent += m > 0 ? (size_t)m : 0;
            turn(false);
            open = receive(fd[1], in);
            if (m < 0) {
                break;
            }
        }
        if ((sent == n || !open) && !ended) {
            ended = true;
            shutdown(fd[1], SHUT_WR);
        }
        turn(false);
        open = receive(fd[1], in) && open;
        if (open && loop->conns) {
            turn(true);
            open = receive(fd[1], in);
        }
        if (time(NULL) - begin > DEADLINE_SECS) {
            fprintf(stderr, "no end of the connection in %d s: sent %zu of %zu, open %d, state %d, got\n%s\n",
                    DEADLINE_SECS, sent, n, open, loop->conns ? (int)loop->conns->state : -1, nrd_str_cstr(in));
            abort();
        }
    }
    close(fd[1]);
}

/* ---- answers ---- */

typedef struct answers {
    int status[MAX_ANSWERS];
    size_t n;
} answers;

static void wrong(const char *why, const nrd_str *in)
{
    fprintf(stderr, "%s:\n%.*s\n", why, (int)in->len, in->data);
    abort();
}

/* The end of a body that comes in chunks; 0: it is not complete. */
static size_t end_of_chunks(const nrd_str *in, size_t at)
{
    for (;;) {
        char *end;
        const char *line = in->data + at;
        const unsigned long n = strtoul(line, &end, 16);
        if (end == line || strncmp(end, "\r\n", 2) != 0 || n > in->len) {
            return 0;
        }
        at += (size_t)(end + 2 - line) + n + 2;
        if (at > in->len) {
            return 0;
        }
        if (n == 0) {
            return at;
        }
    }
}

/* Errors count as one status: a head may have several faults, of which the end of a piece shows another
 * first. Heads of answers to HEAD promise bodies that do not come: `has_head` says that there may be such. */
static void read_answers(const nrd_str *in, bool has_head, answers *out)
{
    size_t at = 0;
    out->n = 0;
    while (at < in->len) {
        int status = 0;
        const char *p = in->data + at, *end = strstr(p, "\r\n\r\n");
        if (sscanf(p, "HTTP/1.%*1[01] %3d ", &status) != 1 || status < 100 || status > 599 || !end) {
            wrong("not an answer", in);
        }
        if (out->n < MAX_ANSWERS && status != 100) {
            out->status[out->n++] = status < 400 ? status : 400;
        }
        const char *length = strstr(p, "\r\nContent-Length: "), *chunked = strstr(p, "\r\nTransfer-Encoding: chunked");
        at = (size_t)(end + 4 - in->data);
        if (status == 100) {
            continue;
        }
        if (has_head) {
            return;
        }
        if (chunked && chunked < end) {
            at = end_of_chunks(in, at);
            if (!at) {
                wrong("chunks that do not end", in);
            }
        } else if (length && length < end) {
            const size_t n = strtoul(length + 18, NULL, 10);
            nrd_json_doc *doc = NULL;
            if (n > in->len - at) {
                wrong("a body that is cut", in);
            }
            if (status >= 400 && n && in->data[at] == '{' && nrd_json_parse(&doc, in->data + at, n, NULL)) {
                wrong("an error that is no JSON", in);
            }
            nrd_json_doc_free(doc);
            at += n;
        } else {
            return; /* until the connection ends */
        }
    }
}

static bool has_word(const char *text, size_t n, const char *word)
{
    const size_t length = strlen(word);
    for (size_t i = 0; i + length <= n; i++) {
        if (strncasecmp(text + i, word, length) == 0) {
            return true;
        }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1 << 20, 1, 7, 100, 4096};
    static answers a, b;
    nrd_str in[2] = {0};
    if (!core) {
        start();
    }
    if (size < 2 || size > MAX_INPUT) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    const bool has_head = has_word(text, size - 1, "HEAD");
    /* Whether a client that ended its input is still there cannot be asked in HTTP/1.0: an answer that is not there by then is
     * given up, and which that are is a matter of time; as it is whether a request meets its deadline. */
    const bool by_time = has_word(text, size - 1, "HTTP/1.0") || has_word(text, size - 1, "timeout") ||
                         has_word(text, size - 1, "deadline");
    size_t step = steps[data[0] % 5];
    step = size > 2000 && step < 100 ? 100 : step;
    for (int i = 0; i < 2; i++) {
        talk(text, size - 1, i ? step : 1 << 20, &in[i]);
        nrd_str_cstr(&in[i]);
        read_answers(&in[i], has_head, i ? &b : &a);
        nrd_error_free(nrd_shm_unregister(front->shm, false, NULL));
    }
    if (!by_time && (a.n != b.n || memcmp(a.status, b.status, a.n * sizeof a.status[0]) != 0)) {
        fprintf(stderr, "in one piece:\n%s\nin pieces:\n%s\n%zu answers in one piece, %zu in pieces of %zu, statuses", nrd_str_cstr(&in[0]),
                nrd_str_cstr(&in[1]), a.n, b.n, step);
        for (size_t i = 0; i < a.n || i < b.n; i++) {
            fprintf(stderr, " %d/%d", i < a.n ? a.status[i] : 0, i < b.n ? b.status[i] : 0);
        }
        fprintf(stderr, "\n");
        abort();
    }
    nrd_str_fini(&in[0]);
    nrd_str_fini(&in[1]);
    return 0;
}
