/* SPDX-License-Identifier: Apache-2.0
 * The process of a rank above 0: opens its share of the engine, then does what rank 0 says, message by
 * message. A second thread shows signs of life and ends the process when rank 0's end of the socket closes. */
#include "base/clock.h"
#include "base/env.h"
#include "base/mem.h"
#include "device/device.h"
#include "executor/ranks/adapters.h"
#include "executor/ranks/launched.h"
#include "executor/ranks/pulse.h"
#include "executor/ranks/ranks.h"
#include "executor/ranks/reply.h"
#include "nereid/executor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct rank_process {
    nrd_segment *segment;
    int socket;
    int32_t rank;
    nrd_device *dev;
    nrd_engine *engine;
    nrd_runner *runner;
    nrd_rank_adapters *adapters;
    atomic_bool computes_here; /* it serves, on processors of this machine */
} rank_process;

static void *live(void *user)
{
    rank_process *w = user;
    struct pollfd fd = {.fd = w->socket, .events = POLLIN};
    nrd_pulse pulse = {.thread = getpid()}; /* the main thread's number is the process's */

    for (;;) {
        const int64_t now_ms = (int64_t)(nrd_now_ns() / 1000000);
        nrd_segment_beat(w->segment, w->rank, atomic_load(&w->computes_here) ? nrd_pulse_look(&pulse, now_ms) : 0);
        if (poll(&fd, 1, NRD_RANK_BEAT_MS) > 0 && (fd.revents & (POLLHUP | POLLIN))) {
            _exit(0); /* nothing is ever sent: it was closed */
        }
    }
}

static nrd_error *open_rank(rank_process *w)
{
    const nrd_rank_config *c = nrd_segment_config(w->segment);
    int32_t size = nrd_segment_size(w->segment);
    char timing_cache[sizeof c->engine_dir + 64];
    nrd_device_config dc = {
        .device_id = c->device_ids[w->rank],
        .n_threads = c->n_threads,
        .isa = c->cpu_isa,
        .timing_cache = timing_cache,
    };
    nrd_runner_config rc = {
        .kv_dtype = c->kv_dtype,
        .compute_f32 = c->compute_f32,
        .streamed_share = c->streamed_share,
        .deterministic = c->deterministic,
        .max_tokens = c->max_tokens,
        .max_entries = c->max_entries,
        .max_draft_rows = c->max_draft_rows,
        .max_top = 1,
        .max_context = c->max_context,
        .block_tokens = c->block_tokens,
        .max_picture_states = c->max_picture_states,
        .rank = {.rank = w->rank, .size = size, .shared = nrd_segment_comm(w->segment),
                 .far = nrd_segment_far(w->segment)},
        .windows = c->n_windows > 0 ? c->windows : NULL,
        .n_windows = c->n_windows,
        .n_sink = c->n_sink,
    };
    nrd_device_info di;

    for (int32_t r = 0; r < size; r++) { /* the processors are shared by the ranks of this host */
        const bool is_here = c->hosts.n <= 1 || c->hosts.of[r] == c->hosts.of[w->rank];
        dc.n_shares += is_here;
        dc.share += is_here && r < w->rank;
    }
    if (dc.device_id < 0) {
        dc.device_id = dc.share;
    }
    rc.taps.n = c->n_taps;
    memcpy(rc.taps.layer, c->taps, sizeof rc.taps.layer);
    NRD_TRY(nrd_engine_open(&w->engine, c->engine_dir, w->rank, c->verify_checksums));
    if (nrd_engine_mark(w->engine) != c->engine_mark) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is another engine here than on rank 0's host; copy all files of one build to "
                          "every host", c->engine_dir);
    }
    snprintf(timing_cache, sizeof timing_cache, "%s/" NRD_TIMING_CACHE ".%d", c->engine_dir, w->rank);
    NRD_TRY(nrd_device_open(&w->dev, c->device, &dc));
    w->dev->ops->get_info(w->dev, &di);
    if (di.host_is_device) {
        (void)nrd_engine_settle(w->engine, di.mem_free_bytes / (uint64_t)size);
    }
    NRD_TRY(nrd_runner_new(&w->runner, w->dev, w->engine, &rc));
    return nrd_rank_adapters_new(&w->adapters, w->dev, w->runner, nrd_engine_spec(w->engine), w->rank);
}

/* Says how something went. Takes err. */
static bool reply(rank_process *w, nrd_error *err)
{
    nrd_rank_reply out = {.failed = err != NULL, .code = err ? (int32_t)nrd_error_get_code(err) : 0};
    nrd_device_info di;

    if (err) {
        snprintf(out.text, sizeof out.text, "%s", nrd_error_message(err));
    } else {
        w->dev->ops->get_info(w->dev, &di);
        out.free_bytes = di.mem_free_bytes;
    }
    bool said = send(w->socket, &out, sizeof out, MSG_NOSIGNAL) == (ssize_t)sizeof out;
    nrd_error_free(err);
    return said && !out.failed;
}

static nrd_error *alloc_kv(rank_process *w, const void *message)
{
    nrd_rank_kv kv;
    memcpy(&kv, message, sizeof kv);
    return nrd_runner_alloc_kv(w->runner, kv.n_blocks, kv.n_host_blocks);
}

/* Until rank 0 stops the ranks. */
static nrd_error *serve(rank_process *w)
{
    nrd_device_info di;

    w->dev->ops->get_info(w->dev, &di);
    atomic_store(&w->computes_here, di.host_is_device);
    for (;;) {
        nrd_message_kind kind;
        const void *message = NULL;
        size_t bytes = 0;
        NRD_TRY(nrd_segment_next(w->segment, &kind, &message, &bytes));
        if (kind == NRD_MESSAGE_STEP) {
            NRD_TRY(nrd_runner_follow(w->runner, message, bytes));
            NRD_TRY(nrd_engine_check(w->engine));
        } else if (kind == NRD_MESSAGE_ADAPTER) {
            NRD_TRY(nrd_rank_adapters_take(w->adapters, message, bytes));
        } else if (kind == NRD_MESSAGE_GIVE) {
            NRD_TRY(nrd_runner_give_share(w->runner, message, bytes));
        } else if (kind != NRD_MESSAGE_ALLOC_KV || bytes != sizeof(nrd_rank_kv)) {
            return nrd_errorf(NRD_ERR_INTERNAL, "a message of kind %d with %zu bytes", (int)kind,
                              bytes);
        } else if (!reply(w, alloc_kv(w, message))) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "no cache");
        }
    }
}

int nrd_exec_worker_main(int32_t rank)
{
    rank_process w = {.socket = NRD_RANK_SOCKET_FD, .rank = rank};
    pthread_t thread;
    const char *parent = nrd_env(NRD_RANK_PARENT, NULL);

    if (parent) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != (pid_t)strtol(parent, NULL, 10)) {
            _exit(1);
        }
    }
    /* These go to all processes of a terminal or service; rank 0 decides when the end has come. */
    (void)syscall(SYS_close_range, NRD_RANK_SOCKET_FD + 1, ~0u, 0); /* ports and files of rank 0 */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    nrd_error *err = nrd_segment_open(&w.segment, NRD_RANK_SEGMENT_FD, rank);
    if (!err && pthread_create(&thread, NULL, live, &w) != 0) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no thread");
    }
    if (!err) {
        err = nrd_segment_connect(w.segment);
        err = err ? err : open_rank(&w);
        if (reply(&w, err)) {
            err = serve(&w);
            if (!nrd_segment_is_stopped(w.segment)) {
                fprintf(stderr, "nereid worker: rank %d: %s\n", rank, nrd_error_message(err));
            }
        } else {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %d was not loaded", rank);
        }
    }
    nrd_error_free(err);
    _exit(1); /* the device may wait for ranks that are gone; the system takes the memory back */
}
