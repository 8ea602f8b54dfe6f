/* SPDX-License-Identifier: Apache-2.0
 * tritonserver: reads the command line, starts the core and the services, waits for a signal. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/running.h"
#ifdef NRD_HAVE_GRPC
#include "frontends/grpc/service.h"
#endif
#include "frontends/common/claim.h"
#include "frontends/common/front.h"
#include "frontends/hosted/hosted.h"
#include "frontends/http/api.h"
#include "frontends/http/origin.h"
#include "frontends/metrics/server.h"
#include "frontends/openai/openai.h"
#include "frontends/options.h"
#include "frontends/passed_sockets.h"
#include "frontends/ports.h"
#include "frontends/running.h"
#include "frontends/service_manager.h"
#include "frontends/ui/ui.h"
#include "nereid/crash.h"
#include "nereid/ranks.h"
#include "nereid/server.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <linux/close_range.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#pragma weak nrd_server_has_failed /* another core may lack it */

#define MAX_DESCRIPTORS (1u << 20)

typedef struct services {
    TRITONSERVER_Server *server;
    nrd_watchdog *watchdog;
    time_t started; /* all services */
    bool drains;
    _Atomic(nrd_http_api *) watched; /* http, once it has started */
    nrd_tracer *tracer;
    nrd_front *front;
    nrd_http_api *http;
    nrd_openai *openai;
    nrd_ui *ui;
    nrd_http_server *metrics;
    nrd_sagemaker *sagemaker;
    nrd_vertex *vertex;
#ifdef NRD_HAVE_GRPC
    nrd_grpc_service *grpc;
#endif
} services;

/* Signals are blocked in every thread and taken by the main thread only, so that nothing has to be
 * safe inside a handler, and a second signal while stopping does no harm. with_hangup: SIGHUP too. */
static void block_signals(sigset_t *out, bool with_hangup)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    if (with_hangup) {
        sigaddset(out, SIGHUP);
    }
    pthread_sigmask(SIG_BLOCK, out, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log or trace file that reaches a limit of the system: the write fails */
}

#ifdef NRD_HAVE_GRPC
static nrd_error *start_grpc(services *s, const nrd_options *o)
{
    if (o->allow_grpc) {
        NRD_TRY(nrd_error_wrap(nrd_grpc_service_start(&s->grpc, s->front),
                               "failed to start GRPC service"));
        NRD_LOG_INFO("Started GRPCInferenceService at %s:%d", o->grpc_address,
                     nrd_grpc_service_port(s->grpc));
    }
    return NULL;
}

static int grpc_port(const services *s)
{
    return s->grpc ? nrd_grpc_service_port(s->grpc) : 0;
}

static void drain_grpc(services *s)
{
    if (s->grpc) {
        nrd_grpc_service_drain(s->grpc);
    }
}

static size_t grpc_busy(const services *s)
{
    return s->grpc ? nrd_grpc_service_busy(s->grpc) : 0;
}

static void free_grpc(services *s)
{
    nrd_grpc_service_free(s->grpc);
}
#else
static int grpc_port(const services *s)
{
    (void)s;
    return 0;
}

static nrd_error *start_grpc(services *s, const nrd_options *o)
{
    (void)s;
    if (o->allow_grpc_given && o->allow_grpc) {
        NRD_LOG_WARN("--allow-grpc=true: this build was made without the gRPC library; port %lld "
                     "is not opened",
                     (long long)o->grpc_port);
    } else if (!o->allow_grpc_given) {
        NRD_LOG_INFO("no GRPCInferenceService: this build was made without the gRPC library");
    }
    return NULL;
}

static void drain_grpc(services *s)
{
    (void)s;
}

static size_t grpc_busy(const services *s)
{
    (void)s;
    return 0;
}

static void free_grpc(services *s)
{
    (void)s;
}
#endif

static bool has_keys(const nrd_options *o)
{
    return o->api_keys.n > 0 || o->api_key_file[0] != '\0';
}

/* Whoever may pull can fill the disk: where nobody is asked for a key, others' machines may not unless it is said. */
static void settle_pull(nrd_options *o)
{
    if (!o->allow_pull_given && !has_keys(o) && !nrd_http_is_loopback(o->http_address)) {
        o->allow_pull = false;
    }
}

/* Once, and for the one mistake that is easily made: everybody's server without anybody's key. */
static void warn_if_open(const nrd_options *o)
{
    const bool http = (o->allow_http || o->allow_sagemaker || o->allow_vertex) && !nrd_http_is_loopback(o->http_address);
    const bool grpc = o->allow_grpc && !nrd_http_is_loopback(o->grpc_address);

    if ((http || grpc) && !has_keys(o)) {
        NRD_LOG_WARN("%s open to whoever reaches %s, and no key is asked for (--api-key; "
                     "--http-restricted-api, --grpc-restricted-protocol)",
                     !grpc ? "HTTP is" : http ? "HTTP and gRPC are" : "gRPC is",
                     http ? o->http_address : o->grpc_address);
    }
}

static nrd_error *start_hosted(services *s, const nrd_options *o)
{
    if (o->allow_sagemaker) {
        NRD_TRY(nrd_error_wrap(nrd_sagemaker_start(&s->sagemaker, s->front), "failed to start Sagemaker service"));
        NRD_LOG_INFO("Started Sagemaker HTTPService at %s:%d", o->http_address, nrd_sagemaker_port(s->sagemaker));
    }
    if (o->allow_vertex) {
        NRD_TRY(nrd_error_wrap(nrd_vertex_start(&s->vertex, s->front), "failed to start Vertex AI service"));
        NRD_LOG_INFO("Started Vertex AI HTTPService at %s:%d", o->http_address, nrd_vertex_port(s->vertex));
    }
    return NULL;
}

/* The main thread, and with several models the one that loads them. */
static void announce(void *arg)
{
    const services *s = arg;
    const nrd_options *o = s->front->options;
    nrd_running_announce(s->server, o, &(nrd_running_facts){.http = o->allow_http ? nrd_http_api_port(s->http) : 0,
                                                            .grpc = grpc_port(s),
                                                            .metrics = o->allow_metrics ? nrd_http_server_port(s->metrics) : 0,
                                                            .started = s->started,
                                                            .drains = s->drains});
}

static nrd_error *start_services(services *s, const nrd_options *o)
{
    const bool own_port = o->allow_openai && o->openai_port >= 0, has_file = o->batch_file[0] != '\0';
    nrd_claim_set_limits((uint64_t)o->inflight_memory_mb, (uint64_t)o->request_memory_mb);
    NRD_TRY(nrd_front_new(&s->front, s->server, o, s->tracer));
    if (o->allow_http || own_port || has_file) {
        NRD_TRY(nrd_error_wrap(nrd_http_api_new(&s->http, s->front),
                               "failed to start HTTP service"));
        if (o->allow_openai) {
            NRD_TRY(nrd_error_wrap(nrd_openai_new(&s->openai, s->http),
                                   "failed to start the OpenAI endpoints"));
        }
        if (own_port || has_file) {
            NRD_TRY(nrd_error_wrap(nrd_openai_listen(s->openai),
                                   "failed to start the OpenAI endpoints"));
        }
        if (own_port) {
            NRD_LOG_INFO("Started OpenAI endpoints at %s:%d", o->http_address,
                         nrd_openai_port(s->openai));
        }
    }
    if (o->allow_http) {
        if (o->ui) {
            NRD_TRY(nrd_error_wrap(nrd_ui_new(&s->ui, s->http), "failed to start the page"));
        }
        NRD_TRY(nrd_error_wrap(nrd_http_api_listen(s->http), "failed to start HTTP service"));
    }
    if (s->openai) {
        NRD_TRY(nrd_error_wrap(nrd_openai_start(s->openai), "failed to start batches"));
    }
    NRD_TRY(start_grpc(s, o));
    NRD_TRY(start_hosted(s, o));
    if (o->allow_http) {
        NRD_LOG_INFO("Started HTTPService at %s:%d", o->http_address, nrd_http_api_port(s->http));
    }
    if (o->allow_metrics) {
        NRD_TRY(nrd_error_wrap(nrd_metrics_service_start(&s->metrics, s->server, o, s->front->tls),
                               "failed to start Metrics service"));
        NRD_LOG_INFO("Started Metrics Service at %s:%d", o->metrics_address,
                     nrd_http_server_port(s->metrics));
    }
    if (s->ui) {
        const bool any = !strcmp(o->http_address, "0.0.0.0") || !strcmp(o->http_address, "::");
        nrd_str host = {0};
        nrd_str_put_host(&host, any ? "localhost" : o->http_address);
        NRD_LOG_INFO("Chat and live view at http%s://%s:%d/", s->front->tls ? "s" : "", nrd_str_cstr(&host),
                     nrd_http_api_port(s->http));
        nrd_str_fini(&host);
    }
    warn_if_open(o);
    s->started = time(NULL);
    if (!has_file) { /* else it has no port that others could ask */
        announce(s);
    }
    if (s->front->switcher && !has_file) {
        nrd_switcher_on_change(s->front->switcher, announce, s);
    }
    if (o->ready_message[0]) {
        fprintf(stderr, "%s\n", o->ready_message);
    }
    atomic_store(&s->watched, s->http);
    nrd_service_notify("READY=1\nSTATUS=Serving");
    return NULL;
}

/* For the service manager. What is not there yet does not hang: a model may take long to load. */
static bool responds(void *arg)
{
    services *s = arg;
    nrd_http_api *http = atomic_load(&s->watched);
    return !http || nrd_http_api_responds(http);
}

/* New connections get the new certificate; a failure leaves the old one. */
static void look_at_certificates(nrd_tls *tls, bool force)
{
    bool changed = false;
    nrd_error *err = nrd_tls_reload(tls, force, &changed);
    if (err) {
        NRD_LOG_ERROR("HTTP keeps its certificate: %s", nrd_error_message(err));
        nrd_error_free(err);
    } else if (changed) {
        NRD_LOG_INFO("HTTP has read its certificate again");
    }
}

/* Until a signal, or 0: until a model fails with --restart-on-failure. With --model-control-mode=poll
 * the repository is looked at now and then. */
static int wait_for_signal(const sigset_t *set, const services *s, const nrd_options *o)
{
    TRITONSERVER_Server *server = s->server;
    nrd_tls *tls = s->front->tls;
    const bool watch = o->restart_on_failure && nrd_server_has_failed;
    int64_t waited = 0;

    for (;;) {
        const bool often = watch || tls;
        struct timespec wait = {often ? 1 : o->poll_secs ? (time_t)o->poll_secs : 3600, 0};
        int sig = sigtimedwait(set, NULL, &wait);
        if (tls) {
            look_at_certificates(tls, sig == SIGHUP);
        }
        if (sig > 0 && sig != SIGHUP) {
            return sig;
        }
        if (watch && nrd_server_has_failed(server)) {
            return 0;
        }
        waited += errno == EAGAIN ? (int64_t)wait.tv_sec : 0;
        if (o->poll_secs && waited >= o->poll_secs) {
            waited = 0;
            nrd_error *err = nrd_from_triton(TRITONSERVER_ServerPollModelRepository(server));
            if (err) {
                NRD_LOG_ERROR("failed to poll model repository: %s", nrd_error_message(err));
                nrd_error_free(err);
            }
        }
    }
}

/* Whether one waits that ends the program. */
static bool has_signal(void *set)
{
    const struct timespec none = {0, 0};
    int sig = SIGHUP;
    while (sig == SIGHUP) {
        sig = sigtimedwait(set, NULL, &none);
    }
    return sig > 0;
}

static size_t http_connections(const services *s)
{
    return (s->http ? nrd_http_api_connections(s->http) : 0) + nrd_openai_connections(s->openai) +
           nrd_sagemaker_connections(s->sagemaker) + nrd_vertex_connections(s->vertex);
}

/* Waits for open connections and calls, one line a second as Triton does. Returns the seconds
 * left. */
static unsigned drain(services *s, unsigned timeout_secs)
{
    const struct timespec pause = {0, 10 * 1000 * 1000};
    const uint64_t begin = nrd_now_ns();
    unsigned left = timeout_secs, told = timeout_secs + 1;

    if (s->front->puller) {
        nrd_puller_stop(s->front->puller);
    }
    if (s->front->switcher) {
        nrd_switcher_stop(s->front->switcher); /* who waits for a model is answered now */
    }
    if (s->http) {
        nrd_http_api_drain(s->http);
    }
    nrd_openai_drain(s->openai);
    nrd_sagemaker_drain(s->sagemaker);
    nrd_vertex_drain(s->vertex);
    drain_grpc(s);
    nanosleep(&pause, NULL); /* the loops close idle connections first */
    while (left > 0 && http_connections(s) + grpc_busy(s) + nrd_openai_batch_requests(s->openai) > 0) {
        if (left < told) {
            NRD_LOG_INFO("Timeout %u: Found %zu HTTP service connections", left,
                         http_connections(s));
            NRD_LOG_INFO("Timeout %u: Found %zu GRPC calls in progress", left, grpc_busy(s));
            told = left;
        }
        nanosleep(&pause, NULL);
        uint64_t passed = (nrd_now_ns() - begin) / 1000000000u;
        left = passed >= timeout_secs ? 0 : timeout_secs - (unsigned)passed;
    }
    nrd_openai_stop_batches(s->openai);
    return left;
}

/* The same program with the same arguments in this process: its memory, threads and descriptors go,
 * and with them what a GPU holds for it. Sockets that were passed stay. */
static void start_again(const nrd_options *o, char **argv)
{
    NRD_LOG_INFO("Starting again");
    fflush(NULL);
#ifdef SYS_close_range
    (void)syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
#endif
    nrd_passed_sockets_inherit(o, true);
    execv("/proc/self/exe", argv);
    NRD_LOG_ERROR("cannot start again: %s", strerror(errno));
}

/* Ends everything in order. Requests that are still in flight after the timeout may call back at
 * any time, so then the process ends without taking anything down. */
static int stop(services *s, const nrd_options *o, char **again)
{
    const unsigned left = drain(s, (unsigned)o->exit_timeout_secs);
    const bool quiet = http_connections(s) + grpc_busy(s) == 0;
    nrd_error_free(nrd_from_triton(TRITONSERVER_ServerSetExitTimeout(s->server, left)));
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerStop(s->server));
    nrd_running_forget();
    if (err) {
        NRD_LOG_ERROR("failed to stop server: %s", nrd_error_message(err));
        nrd_error_free(err);
        if (again) {
            start_again(o, again);
        }
        fflush(NULL);
        _exit(1);
    }
    if (again) {
        start_again(o, again);
    }
    if (!quiet) {
        fflush(NULL);
        _exit(0);
    }
    nrd_watchdog_stop(s->watchdog);
    nrd_front_stop(s->front);
    free_grpc(s);
    nrd_sagemaker_free(s->sagemaker);
    nrd_vertex_free(s->vertex);
    nrd_openai_close(s->openai); /* its requests use what the service owns */
    nrd_http_api_free(s->http);
    nrd_openai_free(s->openai);
    nrd_ui_free(s->ui);
    nrd_http_server_free(s->metrics);
    nrd_front_free(s->front);
    nrd_error_free(nrd_from_triton(TRITONSERVER_ServerDelete(s->server)));
    nrd_tracer_free(s->tracer);
    return 0;
}

/* Each connection takes a descriptor, and the usual soft limit is 1024. */
static void raise_descriptor_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        const rlim_t want = r.rlim_max < MAX_DESCRIPTORS ? r.rlim_max : MAX_DESCRIPTORS;
        if (r.rlim_cur < want) {
            r.rlim_cur = want;
            (void)setrlimit(RLIMIT_NOFILE, &r);
        }
    }
}

/* Workers of other ranks write theirs into the same folder. */
static nrd_error *report_crashes(const nrd_options *o, int argc, char **argv)
{
    const nrd_crash_config c = {
        .dir = o->crash_dir[0] ? o->crash_dir : NULL,
        .keep = (int32_t)o->crash_keep,
        .program = "tritonserver",
        .argc = argc,
        .argv = argv,
    };
    return o->crash_keep > 0 ? nrd_crash_install(&c) : NULL;
}

static int serve(const nrd_options *o, int argc, char **argv)
{
    services s = {0};
    sigset_t signals;
    TRITONSERVER_ServerOptions *t = NULL;
    nrd_error *err = NULL;

    raise_descriptor_limit();
    block_signals(&signals, o->http_use_ssl || o->http_use_ssl_mutual); /* before any thread exists, so that all inherit it */
    NRD_TRY_GOTO(nrd_options_apply_log(o), err, fail);
    NRD_TRY_GOTO(report_crashes(o, argc, argv), err, fail);
    NRD_TRY_GOTO(nrd_ports_check(o, NULL), err, fail);
    NRD_TRY_GOTO(nrd_watchdog_start(&s.watchdog, responds, &s), err, fail);
    NRD_TRY_GOTO(nrd_tracer_new(&s.tracer, o), err, fail);
    err = nrd_from_triton(nrd_options_build(o, &t));
    if (err) {
        fprintf(stderr, "Failed to build Triton option:\n%s\n", nrd_error_message(err));
        nrd_error_free(err);
        nrd_watchdog_stop(s.watchdog);
        return 1;
    }
    NRD_LOG_INFO("Nereid %s, with the interfaces of Triton %s", NRD_VERSION, NRD_TRITON_VERSION);
    TRITONSERVER_Error *e = TRITONSERVER_ServerNew(&s.server, t);
    TRITONSERVER_ServerOptionsDelete(t);
    if (e) { /* the words that Triton ends with; scripts look for them */
        fprintf(stderr, "error: creating server: %s - %s\n", TRITONSERVER_ErrorCodeString(e),
                TRITONSERVER_ErrorMessage(e));
        TRITONSERVER_ErrorDelete(e);
        nrd_watchdog_stop(s.watchdog);
        nrd_tracer_free(s.tracer);
        return 1;
    }
    NRD_TRY_GOTO(start_services(&s, o), err, fail);
    if (o->batch_file[0]) {
        int status = 1;
        NRD_TRY_GOTO(nrd_openai_run_file(s.openai, has_signal, &signals, &status), err, fail);
        nrd_service_notify("STOPPING=1");
        return stop(&s, o, NULL) ? 1 : status;
    }
    int sig = wait_for_signal(&signals, &s, o);
    if (sig) {
        printf("Signal (%d) received.\n", sig); /* plain, as Triton: no log option hides it */
        fflush(stdout);
    } else {
        NRD_LOG_WARN("A model failed while it served: this server starts again (--restart-on-failure)");
    }
    if (s.front->switcher) {
        nrd_switcher_on_change(s.front->switcher, NULL, NULL);
    }
    s.drains = true;
    announce(&s);
    nrd_service_notify(sig ? "STOPPING=1\nSTATUS=Answering what is under way" : "STATUS=Starting again");
    return stop(&s, o, sig ? NULL : argv);

fail:
    NRD_LOG_ERROR("%s", nrd_error_message(err));
    nrd_watchdog_stop(s.watchdog);
    nrd_openai_stop_batches(s.openai);
    if (s.server) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_ServerStop(s.server)));
        nrd_front_stop(s.front);
        free_grpc(&s);
        nrd_sagemaker_free(s.sagemaker);
        nrd_vertex_free(s.vertex);
        nrd_openai_close(s.openai);
        nrd_http_api_free(s.http);
        nrd_openai_free(s.openai);
        nrd_ui_free(s.ui);
        nrd_http_server_free(s.metrics);
        nrd_front_free(s.front);
        nrd_error_free(nrd_from_triton(TRITONSERVER_ServerDelete(s.server)));
    }
    nrd_tracer_free(s.tracer);
    fprintf(stderr, "error: %s\n", nrd_error_message(err)); /* again: the log may be a file, and goes on after it */
    nrd_error_free(err);
    return 1;
}

int main(int argc, char **argv)
{
    nrd_options o;
    int rc = 0;

    nrd_options_init(&o);
    nrd_error *err = nrd_options_parse(&o, argc, argv);
    if (!err) {
        err = nrd_passed_sockets_take(&o);
    }
    if (err) {
        fprintf(stderr, "Usage: tritonserver [options], see tritonserver --help\n%s\n",
                nrd_error_message(err));
        nrd_error_free(err);
        rc = 1;
    } else if (o.help) {
        nrd_str text = {0};
        nrd_options_help(&text);
        fputs(nrd_str_cstr(&text), stdout);
        nrd_str_fini(&text);
    } else if (o.version) {
        printf("tritonserver %s (Nereid %s)\n", NRD_TRITON_VERSION, NRD_VERSION);
    } else {
        nrd_passed_sockets_inherit(&o, false); /* models' processes do not keep the ports open */
        settle_pull(&o);
        nrd_ranks_enter();
        rc = serve(&o, argc, argv);
    }
    nrd_options_fini(&o);
    return rc;
}
