/* SPDX-License-Identifier: Apache-2.0
 * A connection: who holds it, commands to the stub and their replies, answers to its calls, and its end. */
#include "backends/python/backend.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_TIMEOUT_MS = 5000, BEAT_MS = 1000 };

/* The low half of a reply's number counts replies, the high half deaths. */
#define DEATH 0x10000u

void nrd_py_conn_ref(nrd_py_conn *c)
{
    atomic_fetch_add(&c->refs, 1);
}

void nrd_py_conn_unref(nrd_py_conn *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1) {
        return;
    }
    if (c->sock >= 0) {
        close(c->sock);
    }
    if (c->pidfd >= 0) {
        close(c->pidfd);
    }
    nrd_py_message_fini(&c->message);
    nrd_py_returner_fini(&c->to_stub);
    nrd_py_heap_free(c->heap);
    nrd_py_map_close(&c->map);
    if (c->allocator) {
        nrd_tb_log_error(TRITONSERVER_ResponseAllocatorDelete(c->allocator), "response allocator");
    }
    pthread_mutex_destroy(&c->mu);
    pthread_mutex_destroy(&c->aux_mu);
    pthread_cond_destroy(&c->changed);
    free(c->metrics);
    free(c->name);
    free(c);
}

TRITONSERVER_Error *nrd_py_conn_unhealthy(const nrd_py_conn *c)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "Stub process '%s' is not healthy.", c->name);
}

void nrd_py_conn_kill(nrd_py_conn *c)
{
    if (!atomic_load(&c->dead)) {
        kill(c->pid, SIGKILL); /* not waited for yet, so the number is still its */
    }
}

/* ---- answers ---- */

/* The thread that answered in it before is done with it: the stub has said so by asking again, which ThreadSanitizer does not see. */
static nrd_py_slot *answer_slot(const nrd_py_conn *c, uint32_t slot)
{
    nrd_py_slot *s = &c->map.ctl->slots[slot];
    (void)atomic_load(&s->done);
    return s;
}

void nrd_py_answer(nrd_py_conn *c, uint32_t slot, uint64_t a, uint64_t offset, uint64_t bytes)
{
    if (slot >= NRD_PY_SLOTS) {
        return;
    }
    nrd_py_slot *s = answer_slot(c, slot);
    s->failed = 0;
    s->a = a;
    s->offset = offset;
    s->bytes = bytes;
    atomic_store(&s->done, 1);
    nrd_py_wake(&s->done, 1);
}

void nrd_py_answer_error(nrd_py_conn *c, uint32_t slot, TRITONSERVER_Error *err)
{
    const char *text = TRITONSERVER_ErrorMessage(err);
    size_t n = strlen(text);
    uint64_t offset = n ? nrd_py_heap_alloc(c->heap, n) : 0;

    if (slot < NRD_PY_SLOTS) {
        nrd_py_slot *s = answer_slot(c, slot);
        if (offset) {
            memcpy(c->map.base + offset, text, n);
        }
        s->failed = 1 + (uint32_t)TRITONSERVER_ErrorCode(err);
        s->a = 0;
        s->offset = offset;
        s->bytes = offset ? n : 0;
        atomic_store(&s->done, 1);
        nrd_py_wake(&s->done, 1);
    }
    TRITONSERVER_ErrorDelete(err);
}

/* ---- commands ---- */

/* One wait for a reply after number `seen`; true when it is there. */
static bool replied(nrd_py_channel *c, uint32_t seen, int timeout_ms)
{
    nrd_py_await(c, seen, timeout_ms);
    return (uint16_t)(atomic_load(&c->seq) - seen) != 0;
}

TRITONSERVER_Error *nrd_py_conn_await(nrd_py_conn *c, uint32_t seen, int limit_s, nrd_py_reply *out)
{
    nrd_py_control *ctl = c->map.ctl;
    uint64_t start = nrd_now_ns(), alive = start;
    uint32_t beat = atomic_load(&ctl->heartbeat);

    while (!replied(&ctl->reply, seen, BEAT_MS)) {
        if (atomic_load(&c->dead)) {
            return nrd_py_conn_unhealthy(c);
        }
        uint64_t now = nrd_now_ns();
        uint32_t b = atomic_load(&ctl->heartbeat);
        if (b != beat) {
            beat = b;
            alive = now;
        }
        uint64_t limit = (uint64_t)c->backend->timeout_s * 1000000000u;
        if (now - alive > limit || (limit_s > 0 && now - start > (uint64_t)limit_s * 1000000000u)) {
            NRD_LOG_ERROR("stub process '%s' (pid %d) did not answer for %d seconds and is killed",
                          c->name, (int)c->pid, limit_s > 0 ? limit_s : c->backend->timeout_s);
            nrd_py_conn_kill(c);
            return nrd_py_conn_unhealthy(c);
        }
    }
    *out = (nrd_py_reply){ctl->reply.failed, ctl->reply.offset, ctl->reply.bytes};
    if (!nrd_py_map_has(&c->map, out->offset, out->bytes)) {
        out->bytes = 0;
    }
    return NULL;
}

char *nrd_py_conn_take_text(nrd_py_conn *c, const nrd_py_reply *r)
{
    char *text = strndup(r->bytes ? (const char *)c->map.base + r->offset : "", r->bytes);
    if (r->offset) {
        nrd_py_return(&c->to_stub, r->offset);
    }
    return text;
}

TRITONSERVER_Error *nrd_py_conn_command(nrd_py_conn *c, nrd_py_command type, uint64_t offset,
                                        uint64_t bytes, nrd_py_reply *out)
{
    nrd_py_control *ctl = c->map.ctl;
    uint32_t seen = atomic_load(&ctl->reply.seq);

    if (atomic_load(&c->dead)) {
        if (offset) {
            nrd_py_heap_release(c->heap, offset);
        }
        return nrd_py_conn_unhealthy(c);
    }
    nrd_py_post(&ctl->command, type, 0, offset, bytes);
    return nrd_py_conn_await(c, seen, type == NRD_PY_CMD_FINALIZE ? c->backend->timeout_s : 0, out);
}

TRITONSERVER_Error *nrd_py_conn_text(nrd_py_conn *c, nrd_py_command type, const char *text,
                                     char **out_text)
{
    size_t n = strlen(text);
    uint64_t offset = 0;
    nrd_py_reply reply = {0};

    if (n) {
        offset = nrd_py_heap_alloc(c->heap, n);
        if (!offset) {
            return nrd_tb_error(nrd_error_no_memory());
        }
        memcpy(c->map.base + offset, text, n);
    }
    NRD_TB_TRY(nrd_py_conn_command(c, type, offset, n, &reply));
    char *answer = nrd_py_conn_take_text(c, &reply);
    TRITONSERVER_Error *err =
        !answer        ? nrd_tb_error(nrd_error_no_memory())
        : reply.failed ? nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s", answer)
                       : NULL;
    if (out_text && !err) {
        *out_text = answer;
    } else {
        free(answer);
    }
    return err;
}

TRITONSERVER_Error *nrd_py_conn_ready(nrd_py_conn *c, bool *out_ready)
{
    nrd_py_control *ctl = c->map.ctl;
    TRITONSERVER_Error *err = NULL;

    *out_ready = false;
    pthread_mutex_lock(&c->aux_mu);
    uint32_t seen = atomic_load(&ctl->aux_reply.seq);
    uint32_t asked = atomic_load(&ctl->aux.seq);
    /* An answer that came too late for the last question answers this one. */
    if ((uint16_t)asked == (uint16_t)seen) {
        nrd_py_post(&ctl->aux, NRD_PY_CMD_READY, 0, 0, 0);
    }
    uint64_t end = nrd_now_ns() + READY_TIMEOUT_MS * 1000000ull;
    bool got = false;
    while (!(got = replied(&ctl->aux_reply, seen, 200)) && !atomic_load(&c->dead) &&
           nrd_now_ns() < end) {
    }
    if (got) {
        nrd_py_reply r = {ctl->aux_reply.failed, ctl->aux_reply.offset, ctl->aux_reply.bytes};
        if (!nrd_py_map_has(&c->map, r.offset, r.bytes)) {
            r.bytes = 0;
        }
        char *text = nrd_py_conn_take_text(c, &r);
        if (!text) {
            err = nrd_tb_error(nrd_error_no_memory());
        } else if (r.failed) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s", text);
        } else {
            *out_ready = !strcmp(text, "1");
        }
        free(text);
    } else if (atomic_load(&c->dead)) {
        err = nrd_py_conn_unhealthy(c);
    } else {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE,
                            "Timed out waiting for user-defined is_ready() response");
    }
    pthread_mutex_unlock(&c->aux_mu);
    return err;
}

/* ---- the end of a process ---- */

nrd_py_instance *nrd_py_conn_died(nrd_py_conn *c)
{
    int status = 0;
    nrd_py_control *ctl = c->map.ctl;

    if (c->pidfd < 0) {
        kill(c->pid, SIGKILL); /* the socket is closed, the rest follows */
    }
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!atomic_load(&c->ending)) {
        if (WIFSIGNALED(status)) {
            NRD_LOG_ERROR("stub process '%s' (pid %d) was ended by signal %d (%s)", c->name,
                          (int)c->pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
        } else {
            NRD_LOG_ERROR("stub process '%s' (pid %d) ended with exit status %d", c->name,
                          (int)c->pid, WEXITSTATUS(status));
        }
    }
    atomic_store(&c->dead, true);
    atomic_fetch_add(&ctl->reply.seq, DEATH);
    nrd_py_wake(&ctl->reply.seq, INT32_MAX);
    atomic_fetch_add(&ctl->aux_reply.seq, DEATH);
    nrd_py_wake(&ctl->aux_reply.seq, INT32_MAX);
    nrd_py_wake(&ctl->call_tail, INT32_MAX);
    pthread_mutex_lock(&c->mu);
    pthread_cond_broadcast(&c->changed);
    nrd_py_instance *in = atomic_load(&c->ending) ? NULL : c->instance;
    if (in) {
        pthread_mutex_lock(&in->conn_mu);
        in->n_restarts++; /* it stays until the restart is over */
        pthread_mutex_unlock(&in->conn_mu);
    }
    pthread_mutex_unlock(&c->mu);
    return in;
}
