/* SPDX-License-Identifier: Apache-2.0
 * nereid repro FILE: a scheduler's record done again, and where it stood or differs. */
#include "tools/model_path.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/replay.h"
#include "nereid/executor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid repro FILE [options]\n"
    "Does again what a scheduler did, from a crash report (tritonserver --crash-report-dir) or a record\n"
    "(scheduler_record): the same scheduler, without a device and without the model. Tells the step at which\n"
    "the record ends, or at which the scheduler decides in another way. Status 0: the same to the end.\n";

typedef struct options {
    nrd_exec_options exec;
    const char *model;
    int64_t from;
    int32_t record, seed;
    bool trace, report;
} options;

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(FLAG, "trace", "-v", trace, NULL, NULL, "print every arrival, step and end"),
    {.name = "from_step", .form = NRD_OPT_I64, .offset = offsetof(options, from), .min = 0, .max = INT64_MAX, .arg = "N",
     .def = "0", .help = "trace from this step on"},
    {.name = "record", .form = NRD_OPT_INT, .offset = offsetof(options, record), .min = 0, .max = INT32_MAX, .arg = "N",
     .def = "all", .help = "which record of a file with several, from 1"},
    OPT(FLAG, "report", NULL, report, NULL, NULL, "print the text of a crash report first"),
    OPT(STR, "model", NULL, model, "PATH", NULL,
        "also send requests of these lengths and parameters, with random tokens, through a real engine"),
    OPT(INT, "seed", NULL, seed, "N", "1", "of those tokens"),
    NRD_EXEC_OPTION_ROWS(options, exec),
};
const nrd_tool_table nrd_repro_table = NRD_TOOL_TABLE("repro", usage, rows, 1);

/* ---- with a model ---- */

typedef struct real {
    nrd_exec *x;
    nrd_exec_info info;
    uint64_t random;
    uint64_t n_sent, n_left_out, n_open, n_failed, n_tokens;
    char failure[256];
    nrd_error *err;
} real;

static void take(real *m, nrd_exec_response *r)
{
    if (r->error) {
        m->n_failed++;
        snprintf(m->failure, sizeof m->failure, "%s", nrd_error_message(r->error));
    }
    for (int32_t b = 0; b < r->n_beams; b++) {
        m->n_tokens += (uint64_t)r->beams[b].n_ids;
    }
    m->n_open -= r->is_final;
    nrd_exec_response_free(r);
}

/* At most `open` requests stay in flight; the rest is waited for. */
static void wait_for(real *m, uint64_t open)
{
    while (!m->err && m->n_open > open) {
        nrd_exec_response *r[16];
        int32_t n = 0;
        m->err = nrd_exec_await(m->x, r, 16, -1, &n);
        for (int32_t i = 0; i < n; i++) {
            take(m, r[i]);
        }
    }
}

static void send_one(void *user, const nrd_record_add *a)
{
    enum { MAX_OPEN = 256 };
    real *m = user;
    const int32_t n_new = a->max_total - a->n_prompt;
    nrd_exec_request q;
    uint64_t id;

    if (m->err || a->n_prompt > m->info.max_input_len || n_new <= 0 || a->max_total > m->info.max_seq_len || a->width > m->info.max_beam_width) {
        m->n_left_out++;
        return;
    }
    int32_t *ids = malloc((size_t)a->n_prompt * sizeof *ids);
    if (!ids) {
        m->err = nrd_error_no_memory();
        return;
    }
    for (int32_t i = 0; i < a->n_prompt; i++) {
        m->random = m->random * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((m->random >> 33) % (uint64_t)m->info.vocab);
    }
    nrd_exec_request_init(&q);
    q.input_ids = ids;
    q.n_input_ids = a->n_prompt;
    q.max_new_tokens = n_new;
    q.end_id = -1;
    q.exclude_input_in_output = true;
    q.sampling.beam_width = a->width;
    q.sampling.temperature = a->temperature;
    q.sampling.top_k = a->top_k;
    q.sampling.top_p = a->top_p;
    q.sampling.repetition_penalty = a->repetition_penalty;
    q.sampling.random_seed = a->seq;
    q.priority = a->priority;
    m->err = nrd_exec_enqueue(m->x, &q, &id);
    free(ids);
    if (!m->err) {
        m->n_sent++;
        m->n_open++;
        wait_for(m, MAX_OPEN);
    }
}

static nrd_error *run_model(const options *o, const nrd_record_head *head, const uint32_t *const words[2], const size_t n[2])
{
    nrd_error *err = NULL;
    nrd_model_path path = {0};
    nrd_exec_config c;
    real m = {.random = (uint64_t)o->seed, .info.size = sizeof m.info};

    NRD_TRY(nrd_exec_options_open(&o->exec, o->model, &path));
    nrd_exec_config_init(&c);
    NRD_TRY_GOTO(nrd_exec_options_apply(&o->exec, &c), err, done);
    c.enable_kv_cache_reuse = head->kv.reuse;
    c.enable_chunked_context = head->limits.chunked_context;
    c.policy = head->limits.max_utilization ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
    NRD_TRY_GOTO(nrd_exec_open(&m.x, path.engine, &c), err, done);
    nrd_exec_get_info(m.x, &m.info);
    NRD_TRY_GOTO(nrd_replay_requests(words, n, send_one, &m), err, done);
    wait_for(&m, 0);
    err = m.err;
    printf("model %s: %" PRIu64 " sequences sent, %" PRIu64 " left out, which do not fit it, %" PRIu64 " tokens, %" PRIu64 " failed%s%s\n",
           m.info.architecture, m.n_sent, m.n_left_out, m.n_tokens, m.n_failed, m.n_failed ? ": " : "", m.failure);
done:
    nrd_exec_close(m.x);
    nrd_model_path_close(&path);
    return err;
}

/* ---- the record ---- */

static void put_plan(const char *what, const nrd_record_plan *p)
{
    printf("  %s: step %" PRIu32 ", %d entries, %d tokens, %d prompts, %d paused, %d held; blocks: %d free, %d cached, %" PRIu32
           " taken so far\n", what, p->step, p->n_entries, p->n_tokens, p->n_context, p->n_paused, p->n_held, p->n_free, p->n_cached,
           p->n_taken);
}

static nrd_error *replay(const options *o, const nrd_record_head *head, const uint32_t *const words[2], const size_t n[2], int number,
                         bool *same)
{
    nrd_replay_result r;
    const nrd_replay_options how = {.trace = o->trace ? stdout : NULL, .from = (uint64_t)o->from, .state = stdout};

    printf("record %d: %.*s: batches of %d, %d tokens a step, %d blocks of %d tokens%s\n", number, (int)sizeof head->name, head->name,
           head->limits.max_batch_size, head->limits.max_num_tokens, head->kv.n_blocks, head->kv.block_tokens,
           head->kv.reuse ? ", reused" : "");
    NRD_TRY(nrd_replay_run(head, words, n, &how, &r));
    printf("%" PRIu64 " events: %" PRIu64 " sequences, %" PRIu64 " plans, %" PRIu64 " tokens chosen\n", r.n_events, r.n_sequences, r.n_plans,
           r.n_tokens);
    switch (r.end) {
    case NRD_REPLAY_SAME:
        printf("the same decisions to the end: it stood at step %" PRIu64 "\n", r.step);
        break;
    case NRD_REPLAY_DIFFERS:
        printf("differs at step %" PRIu64 ": %s\n", r.step, r.reason);
        put_plan("recorded", &r.recorded);
        put_plan("replayed", &r.replayed);
        break;
    case NRD_REPLAY_UNRECORDED:
    case NRD_REPLAY_NO_START:
    case NRD_REPLAY_BROKEN:
        printf("ends at step %" PRIu64 ": %s\n", r.step, r.reason);
        put_plan("recorded", &r.recorded);
        break;
    }
    *same = *same && r.end == NRD_REPLAY_SAME;
    return NULL;
}

static nrd_error *run(const char *path, const options *o, bool *same)
{
    nrd_map map = {0};
    nrd_error *err = NULL;
    const nrd_record_head *head = NULL;
    const uint32_t *words[2];
    size_t n[2], at = 0;
    int number = 0, n_done = 0;

    NRD_TRY(nrd_map_open(&map, path));
    if (o->report) {
        const char *end = memmem(map.data, map.size_bytes, NRD_RECORD_MARK, sizeof NRD_RECORD_MARK - 1);
        const uint32_t magic = NRD_RECORD_MAGIC;
        if (map.size_bytes < sizeof magic || memcmp(map.data, &magic, sizeof magic) != 0) {
            fwrite(map.data, 1, end ? (size_t)(end - (const char *)map.data) : map.size_bytes, stdout);
        }
    }
    for (;;) {
        NRD_TRY_GOTO(nrd_replay_find(map.data, map.size_bytes, &at, &head, words, n), err, done);
        if (!head) {
            break;
        }
        number++;
        if (o->record > 0 && o->record != number) {
            continue;
        }
        n_done++;
        NRD_TRY_GOTO(replay(o, head, words, n, number, same), err, done);
        if (o->model) {
            NRD_TRY_GOTO(run_model(o, head, words, n), err, done);
        }
    }
    if (n_done == 0) {
        err = number > 0 ? nrd_errorf(NRD_ERR_NOT_FOUND, "--record: '%s' has %d", path, number)
                         : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' holds no record of a scheduler", path);
    }
done:
    nrd_map_close(&map);
    return err;
}

int nrd_tool_repro(int argc, char **argv)
{
    options o = {.seed = 1};
    const char *path = NULL;
    bool same = true;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_repro_table, argc, argv, &o, &path, &n);
    if (status >= 0) {
        return status;
    }
    if (!path) {
        fputs("nereid repro: FILE is missing (see --help)\n", stderr);
        return 2;
    }
    nrd_error *err = run(path, &o, &same);
    return err ? nrd_tool_finish("repro", err) : !same;
}
