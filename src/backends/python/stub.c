/* SPDX-License-Identifier: Apache-2.0
 * Stub processes: start and end. */
#include "backends/python/backend.h"
#include "backends/python/sandbox.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Address space, not memory: half the file for each side. */
#define HALF_BYTES ((uint64_t)64 << 30)

/* ---- start ---- */

typedef struct launch {
    pid_t pid;
    int status;
    const char *const *argv;
    const posix_spawn_file_actions_t *files;
    const posix_spawnattr_t *attr;
} launch;

static void spawn_now(void *arg)
{
    launch *s = arg;
    s->status = posix_spawnp(&s->pid, s->argv[0], s->files, s->attr, (char *const *)(uintptr_t)s->argv, environ);
}

static bool is_in_tmp(const char *path)
{
    return path && strncmp(path, "/tmp/", 5) == 0;
}

/* true: s->status tells how it went. */
static bool start_stub(launch *s, const nrd_py_model *m, char *why, size_t n)
{
    const nrd_py_backend *b = m->backend;
    if (!b->sandbox) {
        spawn_now(s);
        return true;
    }
    return nrd_py_sandbox_run(spawn_now, s,
                              !is_in_tmp(m->folder) && !is_in_tmp(m->env_folder) && !is_in_tmp(b->folder) &&
                                  !is_in_tmp(b->model_folder) && !is_in_tmp(b->python),
                              why, n);
}

static TRITONSERVER_Error *spawn(nrd_py_conn *c, const nrd_py_model *m, int memory, int sock)
{
    const nrd_py_backend *b = m->backend;
    char fd_memory[16], fd_sock[16], version[32];
    nrd_str script = {0}, model_file = {0}, python = {0}, activate = {0};
    const char *file = nrd_json_get_str(m->config.root, "default_model_filename", "");
    const char *argv[16];
    size_t n = 0;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    char why[160] = "";

    TRITONSERVER_Error *err = NULL;

    /* Also while the server runs, where a process died: without memory this start alone fails. */
    nrd_str_printf(&script, "%s/triton_python_backend_stub.py", b->folder);
    nrd_str_printf(&model_file, "%s/%llu/%s", m->folder, (unsigned long long)m->config.version, *file ? file : "model.py");
    nrd_str_printf(&python, "%s/bin/python3", m->env_folder ? m->env_folder : "");
    nrd_str_printf(&activate, "%s/bin/activate", m->env_folder ? m->env_folder : "");
    nrd_error *no_memory = nrd_str_error(&script);
    no_memory = no_memory ? no_memory : nrd_str_error(&model_file);
    no_memory = no_memory ? no_memory : nrd_str_error(&python);
    no_memory = no_memory ? no_memory : nrd_str_error(&activate);
    if (no_memory) {
        err = nrd_tb_error(no_memory);
        goto done;
    }
    snprintf(fd_memory, sizeof fd_memory, "%d", memory);
    snprintf(fd_sock, sizeof fd_sock, "%d", sock);
    snprintf(version, sizeof version, "%llu", (unsigned long long)m->config.version);
    if (m->env_folder) {
        /* The script of a Conda pack or a virtual environment sets what its packages expect. */
        argv[n++] = "bash";
        argv[n++] = "-c";
        argv[n++] = ". \"$0\" && exec \"$@\"";
        argv[n++] = nrd_str_cstr(&activate);
        argv[n++] = nrd_str_cstr(&python);
    } else {
        argv[n++] = b->python;
    }
    const char *rest[] = {nrd_str_cstr(&script), fd_memory, fd_sock, nrd_str_cstr(&model_file), version,
                          b->model_folder ? b->model_folder : "-", c->name};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        argv[n++] = rest[i];
    }
    argv[n] = NULL;
    NRD_LOG_VERBOSE(1, "Starting Python backend stub: %s %s %s", argv[0], nrd_str_cstr(&script), nrd_str_cstr(&model_file));

    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, memory, memory); /* clears close-on-exec */
    posix_spawn_file_actions_adddup2(&files, sock, sock);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    launch s = {.argv = argv, .files = &files, .attr = &attr};
    const bool started = start_stub(&s, m, why, sizeof why);
    c->pid = s.pid;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    if (!started) {
        c->pid = 0;
        err = nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "--backend-config=python,sandbox=true: %s", why);
    } else if (s.status != 0) {
        c->pid = 0;
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                            "Failed to run python backend stub with '%s': %s", argv[0],
                            strerror(s.status));
    }
done:
    nrd_str_fini(&script);
    nrd_str_fini(&model_file);
    nrd_str_fini(&python);
    nrd_str_fini(&activate);
    return err;
}

static TRITONSERVER_Error *watch(nrd_py_conn *c)
{
    struct epoll_event e = {.events = EPOLLIN, .data = {.ptr = c}};
#ifdef SYS_pidfd_open
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
#endif
    nrd_py_conn_ref(c);
    if (epoll_ctl(c->backend->epoll, EPOLL_CTL_ADD, c->pidfd >= 0 ? c->pidfd : c->sock, &e) != 0) {
        TRITONSERVER_Error *err = nrd_tb_errorf(
            TRITONSERVER_ERROR_INTERNAL, "cannot watch a stub process: %s", strerror(errno));
        kill(c->pid, SIGKILL);
        (void)nrd_py_conn_died(c); /* it has no instance yet */
        nrd_py_conn_unref(c);
        return err;
    }
    return NULL;
}

static bool can_read(const nrd_py_conn *c)
{
    uint64_t word = 0;
    struct iovec to = {.iov_base = &word, .iov_len = sizeof word};
    struct iovec from = {.iov_base = (void *)(uintptr_t)c->map.ctl->probe, .iov_len = sizeof word};
    return process_vm_readv(c->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof word &&
           word == NRD_PY_PROBE;
}

static TRITONSERVER_Error *conn_new(nrd_py_conn **out, nrd_py_model *m, const char *name,
                                    int *out_memory, int *out_sock)
{
    int pair[2];
    nrd_py_conn *c = calloc(1, sizeof *c);
    TRITONSERVER_Error *err = NULL;

    *out_memory = *out_sock = -1;
    if (!c) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    atomic_store(&c->refs, 1);
    c->backend = m->backend;
    c->server = m->config.server;
    c->decoupled = m->config.decoupled;
    c->name = strdup(name);
    c->sock = c->pidfd = -1;
    c->next_id = 1;
    pthread_mutex_init(&c->mu, NULL);
    pthread_mutex_init(&c->aux_mu, NULL);
    nrd_cond_init_steady(&c->changed);
    *out_memory = c->name ? nrd_py_map_create(&c->map, m->backend->prefix, HALF_BYTES) : -1;
    if (*out_memory < 0) {
        err = !c->name ? nrd_tb_error(nrd_error_no_memory())
                       : nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                       "Unable to initialize shared memory for '%s': %s", name, strerror(errno));
        nrd_py_returner_init(&c->to_stub, NULL);
        goto fail;
    }
    nrd_py_control *ctl = c->map.ctl;
    nrd_py_returner_init(&c->to_stub, &ctl->to_stub);
    c->heap = nrd_py_heap_new(c->map.base, ctl->server_base, ctl->half_bytes, &ctl->to_server);
    if (!c->heap) {
        err = nrd_tb_error(nrd_error_no_memory());
        goto fail;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot make a socket: %s",
                            strerror(errno));
        goto fail;
    }
    c->sock = pair[0];
    *out_sock = pair[1];
    err = nrd_py_infer_allocator(&c->allocator);
    if (err) {
        goto fail;
    }
    *out = c;
    return NULL;
fail:
    if (*out_memory >= 0) {
        close(*out_memory);
    }
    if (*out_sock >= 0) {
        close(*out_sock);
    }
    nrd_py_conn_unref(c);
    return err;
}

TRITONSERVER_Error *nrd_py_conn_start(nrd_py_conn **out, nrd_py_model *m, const char *name)
{
    int memory, sock;
    nrd_py_conn *c = NULL;
    nrd_py_reply reply = {0};
    char *text = NULL;

    *out = NULL;
    NRD_TB_TRY(conn_new(&c, m, name, &memory, &sock));
    TRITONSERVER_Error *err = spawn(c, m, memory, sock);
    close(memory);
    close(sock);
    if (!err) {
        err = watch(c);
    }
    if (err) {
        nrd_py_conn_unref(c);
        return err;
    }
    nrd_py_conn_ref(c);
    if (pthread_create(&c->service, NULL, nrd_py_serve, c) != 0) {
        nrd_py_conn_unref(c);
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "cannot start a thread: %s",
                            strerror(errno));
    } else {
        c->service_runs = true;
        err = nrd_py_conn_await(c, 0, m->backend->timeout_s, &reply);
    }
    if (!err) {
        text = nrd_py_conn_take_text(c, &reply);
        if (!text) {
            err = nrd_tb_error(nrd_error_no_memory());
        } else if (reply.failed) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s", text);
        } else {
            NRD_LOG_VERBOSE(1, "stub process '%s' (pid %d) runs Python %s", name, (int)c->pid, text);
            c->remote = can_read(c);
        }
        free(text);
    }
    if (err) {
        atomic_store(&c->ending, true);
        nrd_py_conn_kill(c);
        nrd_py_conn_stop(c);
        return err;
    }
    *out = c;
    return NULL;
}

/* ---- end ---- */

static bool wait_dead(nrd_py_conn *c, int limit_s)
{
    uint64_t end = nrd_now_ns() + (uint64_t)limit_s * 1000000000u;
    pthread_mutex_lock(&c->mu);
    while (!atomic_load(&c->dead) && nrd_now_ns() < end) {
        const struct timespec t = nrd_steady_in(1000000000u);
        pthread_cond_timedwait(&c->changed, &c->mu, &t);
    }
    pthread_mutex_unlock(&c->mu);
    return atomic_load(&c->dead);
}

void nrd_py_conn_detach(nrd_py_conn *c)
{
    pthread_mutex_lock(&c->mu);
    atomic_store(&c->ending, true);
    c->instance = NULL;
    pthread_mutex_unlock(&c->mu);
}

void nrd_py_conn_stop(nrd_py_conn *c)
{
    nrd_py_conn_detach(c);
    if (c->initialized && !atomic_load(&c->dead)) {
        nrd_tb_log_error(nrd_py_conn_text(c, NRD_PY_CMD_FINALIZE, "", NULL), "finalizing a Python model");
    } else if (!atomic_load(&c->dead)) {
        nrd_py_post(&c->map.ctl->command, NRD_PY_CMD_FINALIZE, 0, 0, 0);
    }
    if (!wait_dead(c, c->backend->timeout_s)) {
        NRD_LOG_WARN("stub process '%s' (pid %d) did not end and is killed", c->name, (int)c->pid);
        nrd_py_conn_kill(c);
        while (!wait_dead(c, 1)) {
        }
    }
    nrd_py_infer_cancel_all(c);
    atomic_store(&c->stop_service, true);
    nrd_py_wake(&c->map.ctl->call_tail, INT32_MAX);
    if (c->service_runs) {
        pthread_join(c->service, NULL);
    }
    /* What runs for it in other threads calls back into this library. */
    pthread_mutex_lock(&c->mu);
    while (c->n_infers || c->n_jobs) {
        pthread_cond_wait(&c->changed, &c->mu);
    }
    pthread_mutex_unlock(&c->mu);
    nrd_py_metrics_free(c);
    nrd_py_conn_unref(c);
}
