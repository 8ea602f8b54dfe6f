/* SPDX-License-Identifier: Apache-2.0
 * The scheduler, with integers: a pretended device whose KV blocks hold the hash of everything up
 * to each position, and whose next token is a function of that hash. Whatever the policy, batch,
 * chunks, pauses, reuse, window, overlap or drafts, every sequence must get the tokens that it gets
 * alone, and every position that a step may look at must hold what belongs there. */
#include "scheduler_sim.h"

#include "engine/replay.h"

static void check_apart(const sim *s)
{
    for (int a = 0; a < s->lim.n_micro; a++) {
        for (int32_t i = 0; i < s->plans[a].n_entries; i++) {
            const nrd_plan_entry *e = &s->plans[a].entries[i];
            assert_false(e->from_slot);
            for (int b = 0; b < s->lim.n_micro; b++) {
                for (int32_t k = 0; b != a && e->row >= 0 && k < s->plans[b].n_entries; k++) {
                    const nrd_plan_entry *o = &s->plans[b].entries[k];
                    assert_true(o->seq != e->seq || o->row < 0 || o->epoch != e->epoch);
                }
            }
        }
    }
}

/* As many plans under way as there are stages. */
static void drive_stages(sim *s)
{
    int first = 0, n = 0;
    for (s->step = 0; !all_idle(s); s->step++) {
        bool more = true;
        assert_true(s->step < 5000); /* nobody starves */
        feed(s);
        while (more && n < s->lim.n_micro) {
            more = make_plan(s, (first + n) % s->lim.n_micro);
            n += more;
        }
        check_apart(s);
        if (n == 0) {
            assert_null(nrd_sched_first_running(s->sched));
            assert_null(nrd_sched_first_waiting(s->sched));
            continue;
        }
        finish_plan(s, first);
        first = (first + 1) % s->lim.n_micro;
        n--;
        check_all(s);
    }
}

static void drive(sim *s)
{
    int inflight = -1;
    if (s->lim.n_micro > 1) {
        drive_stages(s);
        return;
    }
    for (s->step = 0; !all_idle(s); s->step++) {
        assert_true(s->step < 5000); /* nobody starves */
        feed(s);
        if (inflight < 0) {
            if (make_plan(s, 0)) {
                inflight = 0;
            } else {
                assert_null(nrd_sched_first_running(s->sched));
                assert_null(nrd_sched_first_waiting(s->sched));
            }
            if (s->overlap) {
                continue;
            }
        }
        if (inflight < 0) {
            continue;
        }
        bool ahead = s->overlap && nrd_sched_may_overlap(s->sched) && make_plan(s, 1 - inflight);
        finish_plan(s, inflight);
        inflight = ahead ? 1 - inflight : -1;
        check_all(s);
    }
}

static size_t read_record(nrd_record *r, uint64_t **out)
{
    FILE *f = tmpfile();
    static const char zeros[8];
    (void)r;
    assert_non_null(f);
    const size_t pad = (8 - (sizeof NRD_RECORD_MARK - 1) % 8) % 8;
    assert_int_equal(fwrite(zeros, 1, pad, f), pad);
    fflush(f);
    for (int i = 0; i < nrd_record_slots(); i++) {
        nrd_record_write(fileno(f), i);
    }
    const long n = (fseek(f, 0, SEEK_END), ftell(f));
    rewind(f);
    *out = calloc(1, (size_t)n + 8);
    assert_int_equal(fread(*out, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    return (size_t)n;
}

static nrd_replay_result replay_of(const void *data, size_t n, size_t cut)
{
    static const nrd_replay_options quiet;
    const nrd_record_head *head;
    const uint32_t *words[2];
    size_t sizes[2], at = 0;
    nrd_replay_result r;
    assert_null(nrd_replay_find(data, n, &at, &head, words, sizes));
    assert_non_null(head);
    if (cut > 0) { /* the process died here */
        sizes[0] = sizes[0] > cut ? sizes[0] - cut : 0;
    }
    assert_null(nrd_replay_run(head, words, sizes, &quiet, &r));
    return r;
}

/* The record of all that happened gives the same plans; so does any beginning of it. */
static void check_record(const sim *s, nrd_record *record, rng *rand)
{
    uint64_t *data = NULL;
    const size_t n = read_record(record, &data);
    nrd_replay_result r = replay_of(data, n, 0);
    if (r.end == NRD_REPLAY_UNRECORDED) {
        assert_true(s->lim.max_beam_width > 1 || s->lim.max_draft_rows > 0);
    } else {
        if (r.end != NRD_REPLAY_SAME) {
            fprintf(stderr, "replay: %s at step %llu\n", r.reason, (unsigned long long)r.step);
        }
        assert_int_equal(r.end, NRD_REPLAY_SAME);
        assert_int_equal(r.n_sequences, s->n_jobs);
    }
    for (int i = 0; i < 3; i++) {
        nrd_replay_end end = replay_of(data, n, (size_t)rng_in(rand, 1, 400)).end;
        assert_true(end == NRD_REPLAY_SAME || end == NRD_REPLAY_UNRECORDED);
    }
    free(data);
}

typedef struct drafted {
    int32_t n, n_moved, n_loaded, n_back;
} drafted;

/* Returns how many draft tokens were computed, and how many that held were moved. */
static drafted scenario(uint64_t seed)
{
    rng r = {seed};
    sim *s = calloc(1, sizeof *s);
    s->lim = (nrd_sched_limits){
        .max_batch_size = rng_in(&r, 1, 6),
        .max_beam_width = rng_in(&r, 0, 2) ? 1 : MAX_W,
        .max_utilization = rng_in(&r, 0, 1),
        .is_static = rng_in(&r, 0, 5) == 0,
        .chunked_context = rng_in(&r, 0, 1),
        .mixed_context_tokens = rng_in(&r, 0, 1) ? rng_in(&r, 1, 12) : 0,
        .even_context_tokens = rng_in(&r, 0, 1) ? rng_in(&r, 1, 6) : 0,
        .choices_at_once = rng_in(&r, 0, 1) ? rng_in(&r, 1, 3) : 0,
    };
    if (rng_in(&r, 0, 3) == 0) {
        s->lim.window = rng_in(&r, 5, 20);
        s->lim.n_sink = rng_in(&r, 0, 4);
    }
    s->lim.recurrent = s->lim.max_beam_width == 1 && s->lim.window == 0 && rng_in(&r, 0, 2) == 0;
    s->lim.max_num_tokens = s->lim.max_batch_size * s->lim.max_beam_width + rng_in(&r, 0, 30);
    if (!s->lim.chunked_context && s->lim.max_num_tokens < 30) {
        s->lim.max_num_tokens = 30;
    }
    s->lim.n_micro = !s->lim.recurrent && rng_in(&r, 0, 2) == 0 ? rng_in(&r, 2, MAX_PLANS) : 0;
    s->lim.max_draft_rows = rng_in(&r, 0, 1) ? rng_in(&r, 1, 20) : 0;
    s->overlap = rng_in(&r, 0, 1);
    s->n_jobs = rng_in(&r, 1, MAX_SEQS);
    for (int32_t i = 0; i < s->n_jobs; i++) {
        make_job(s, &s->jobs[i], &r);
        if (i > 0 && rng_in(&r, 0, 4) == 0 && s->jobs[i - 1].q.req.width == 1 &&
            s->jobs[i].q.req.width == 1) {
            /* a second sample of the same prompt */
            nrd_seq *a = &s->jobs[i - 1].q, *b = &s->jobs[i].q;
            b->req.n_prompt = a->req.n_prompt;
            memcpy(b->dec.tokens, a->dec.tokens, (size_t)a->req.n_prompt * sizeof *b->dec.tokens);
            b->req.max_total = a->req.max_total;
            b->req.leader = a;
            b->req.picture_rows = a->req.picture_rows;
            a->req.group = a->req.group ? a->req.group : (uint64_t)i;
            b->req.group = a->req.group;
            nrd_decode_prepare(b);
            s->jobs[i].start_step = s->jobs[i - 1].start_step;
        }
    }
    int32_t need = 0;
    for (int32_t i = 0; i < s->n_jobs; i++) {
        const nrd_seq *q = &s->jobs[i].q;
        int32_t n =
            nrd_sched_worst_blocks(&s->lim, BT, q->req.n_prompt, q->req.max_total, q->req.width);
        need = n > need ? n : need;
    }
    s->n_blocks = need + rng_in(&r, 0, 40);
    nrd_kv_config kc = {.n_blocks = s->n_blocks, .block_tokens = BT, .reuse = rng_in(&r, 0, 2) > 0};
    s->n_host = kc.n_host_blocks = kc.reuse && rng_in(&r, 0, 1) ? rng_in(&r, 1, 50) : 0;
    kc.n_states = kc.reuse && s->lim.recurrent ? rng_in(&r, 0, 7) : 0;
    s->kept = calloc(8, sizeof *s->kept);
    assert_null(nrd_kv_new(&s->kv, &kc));
    assert_null(nrd_sched_new(&s->sched, &s->lim, s->kv));
    nrd_record *record;
    assert_null(nrd_record_new(&record, "sim", 1 << 18, NULL, &s->lim, &kc, s->kv));
    nrd_sched_set_tap(s->sched, nrd_record_tap(record));
    s->content = calloc((size_t)(s->n_blocks + s->n_host), sizeof *s->content);
    for (int i = 0; i < MAX_PLANS; i++) {
        assert_null(nrd_plan_init(&s->plans[i], &s->lim, s->kv));
    }
    drive(s);
    assert_true(nrd_sched_is_empty(s->sched));
    assert_int_equal(nrd_kv_n_available(s->kv), s->n_blocks);
    check_record(s, record, &r);
    nrd_record_free(record);
    for (int32_t i = 0; i < s->n_jobs; i++) {
        for (int32_t b = 0; b < s->jobs[i].q.req.width; b++) {
            nrd_kv_table_fini(&s->jobs[i].tables[b]);
        }
        nrd_beams_free(s->jobs[i].q.dec.beams);
    }
    for (int i = 0; i < MAX_PLANS; i++) {
        nrd_plan_fini(&s->plans[i]);
    }
    if (nrd_kv_states(s->kv)) {
        nrd_states_check(nrd_kv_states(s->kv), 0);
    }
    nrd_sched_free(s->sched);
    nrd_kv_free(s->kv);
    free(s->content);
    free(s->kept);
    const drafted n = {s->n_drafted, s->n_moved, s->n_loaded, s->n_back};
    free(s);
    return n;
}

static void test_every_sequence_gets_what_it_gets_alone(void **state)
{
    uint64_t seed = first_seed();
    const char *one = getenv("NRD_ONLY");
    int32_t n_drafted = 0, n_moved = 0, n_loaded = 0, n_back = 0;
    (void)state;
    for (uint64_t i = 0; i < (one ? 1u : 1500u); i++) {
        if (getenv("NRD_TRACE")) {
            fprintf(stderr, "scenario %llu\n", (unsigned long long)(seed + i));
        }
        const drafted n = scenario(seed + i);
        n_drafted += n.n;
        n_back += n.n_back;
        n_moved += n.n_moved;
        n_loaded += n.n_loaded;
    }
    assert_true(one || (n_drafted > 10000 && n_moved > 500 && n_loaded > 300 && n_back > 200));
}

static void test_limits_that_cannot_work_are_refused(void **state)
{
    nrd_sched *s;
    nrd_sched_limits lim = {.max_batch_size = 8, .max_beam_width = 2, .max_num_tokens = 15};
    (void)state;
    nrd_error *err = nrd_sched_new(&s, &lim, NULL);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
    assert_null(s);
    nrd_error_free(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sequence_gets_what_it_gets_alone),
        cmocka_unit_test(test_limits_that_cannot_work_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
