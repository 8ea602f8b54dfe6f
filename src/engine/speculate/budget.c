/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/budget.h"

#include <stddef.h>

/* Nothing is known of larger steps than ran: each token more is taken for so much of the largest known one. Too
 * little rather than too much, since a step that is tried is known afterwards. */
static const float UNKNOWN_TOKEN = 0.01f;
static const float NEWEST = 0.2f; /* share of the newest step in what is believed: contexts grow, machines differ */
static const float MOST_OF_KNOWN = 1.5f; /* a step counts for no more than so many times what is believed */
static const double LEAST_GAIN = 1.01; /* for drafts at all: what is believed of costs is no better than that */
static const float TRIALS = 0.01f; /* of the time of steps whose drafts were left out */
enum { SURE = 4 }; /* steps of one size, from which on their cost is known well */
/* Where steps may be planned ahead, drafts are also judged by what they earned. They rest where they lost what so many steps
 * without them take; what they earned before counts up to so many; one step loses no more than a part, which something else may have held up. */
static const float MOST_LOST = 1.5f, MOST_EARNED = 6, MOST_OF_ONE = 0.5f;
enum { FIRST_REST = 32, LONGEST_REST = 2048 }; /* steps; each rest is twice as long as the one before */
enum { SHORTER_REST = 4 }; /* by so much, behind a step that found as much earned as counts */
enum { LAG_STEPS = 64 }; /* a network that catches up is of use to so many steps */

/* What the guesses that are kept so far take. */
typedef struct guessing {
    int32_t in_pass[NRD_MAX_PASSES]; /* drafts that have a token of this pass */
    float ns, lag_ns;
} guessing;

/* At most NRD_COST_TOKENS. */
static int32_t filled(const nrd_step_costs *c, int32_t n)
{
    int32_t (*up)(int32_t n_tokens) = c->filled_up ? c->filled_up : c->like ? c->like->filled_up : NULL;
    n = up ? up(n) : n;
    return n < NRD_COST_TOKENS ? n : NRD_COST_TOKENS;
}

static bool is_weighed(int32_t n_tokens)
{
    return n_tokens > 0 && n_tokens <= NRD_COST_TOKENS;
}

static void learn(float *known, float took)
{
    const float most = MOST_OF_KNOWN * *known; /* something else may have held a step up */
    *known = *known > 0 ? *known + ((took < most ? took : most) - *known) * NEWEST : took;
}

/* Sizes that ran on both sides of one that may have, and none between them; above > NRD_COST_TOKENS, below 0: none. */
typedef struct neighbours {
    int32_t below, above;
} neighbours;

static void look_around(const float ns[], int32_t n, neighbours *k)
{
    if (k->below < n && n < k->above) {
        return; /* as for the size that was asked before */
    }
    k->below = k->above = n;
    while (k->below > 0 && ns[k->below] <= 0) {
        k->below--;
    }
    while (k->above <= NRD_COST_TOKENS && ns[k->above] <= 0) {
        k->above++;
    }
}

/* Between two sizes that ran, a straight line; 0: none ran. */
static float cost_near(const float ns[], int32_t n, neighbours *k)
{
    look_around(ns, n, k);
    const int32_t below = k->below, above = k->above;
    if (below == 0 || above > NRD_COST_TOKENS) {
        const float known = below > 0 ? ns[below] : above <= NRD_COST_TOKENS ? ns[above] : 0;
        const int32_t more = below > 0 ? n - below : 0;
        return known * (1.0f + (float)more * UNKNOWN_TOKEN);
    }
    return above == below ? ns[n] : ns[below] + (ns[above] - ns[below]) * (float)(n - below) / (float)(above - below);
}

static float cost_of(const nrd_step_costs *c, int32_t n)
{
    neighbours k = {0};
    const float known = cost_near(c->ns, filled(c, n), &k);

    return known > 0 ? known : c->like ? c->share * cost_of(c->like, n) : 1.0f;
}

/* Of a step with drafts: at least what one without takes, where sizes of that kind ran on both sides. near: of both kinds,
 * zero at first. */
static float drafted_cost(const nrd_step_costs *c, int32_t n, neighbours near[2])
{
    n = filled(c, n);
    const float plain = cost_near(c->ns, n, &near[0]), drafted = cost_near(c->drafted_ns, n, &near[1]);
    const bool between = near[0].below > 0 && near[0].above <= NRD_COST_TOKENS;

    if (drafted > 0) {
        return between && plain > drafted ? plain : drafted;
    }
    return plain > 0 ? plain : cost_of(c, n);
}

static void learn_wait(nrd_step_costs *c, float more)
{
    learn(&c->waits_ns, more > 1 ? more : 1);
}

/* Of the first few of a size the least counts: while there are drafts they are rare, and one that was held up would be believed for long. */
void nrd_costs_hear(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    if (!is_weighed(n_tokens)) {
        return;
    }
    const int32_t at = filled(c, n_tokens);
    if (c->n_heard[at] == 0) {
        if (c->ns[at] > 0) { /* of late steps */
            learn_wait(c, c->ns[at] + c->waits_ns - (float)ns);
        }
        c->ns[at] = (float)ns;
    }
    if (c->n_heard[at] < SURE) {
        c->n_heard[at]++;
        c->ns[at] = (float)ns < c->ns[at] ? (float)ns : c->ns[at];
    } else {
        learn(&c->ns[at], (float)ns);
    }
}

/* Of a size that never ran planned ahead, what others waited is taken off. */
void nrd_costs_hear_late(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    c->overlaps = true;
    if (!is_weighed(n_tokens)) {
        return;
    }
    const int32_t at = filled(c, n_tokens);
    if (c->n_heard[at] > 0) {
        learn_wait(c, (float)ns - c->ns[at]);
        if ((float)ns < c->ns[at]) { /* planned ahead it would take no longer: what is believed was held up, or is old */
            learn(&c->ns[at], (float)ns);
        }
    } else {
        learn(&c->ns[at], (float)ns > 2 * c->waits_ns ? (float)ns - c->waits_ns : (float)ns);
    }
}

void nrd_costs_hear_drafted(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    if (is_weighed(n_tokens)) {
        learn(&c->drafted_ns[filled(c, n_tokens)], (float)ns);
    }
}

void nrd_costs_hear_recorded(nrd_step_costs *c, int32_t n_sequences, uint64_t ns)
{
    const float more = is_weighed(n_sequences) ? (float)ns - cost_of(c, n_sequences) : 0;
    c->refused_ns -= more > 0 ? more / TRIALS : 0;
}

void nrd_costs_settle(nrd_step_costs *c, int32_t n_sequences, int32_t n_held, uint64_t ns)
{
    if (!c->overlaps || !is_weighed(n_sequences)) {
        return; /* each step is weighed alone */
    }
    if (c->n_rest > 0) {
        c->n_rest--;
        return;
    }
    const float plain = cost_of(c, n_sequences), most = MOST_OF_ONE * plain;
    const float lost = (float)ns - plain * (float)(n_sequences + n_held) / (float)n_sequences;
    c->lost_ns += lost < most ? lost : most;
    if (c->lost_ns < -MOST_EARNED * plain) {
        c->lost_ns = -MOST_EARNED * plain;
        c->next_rest -= c->next_rest > FIRST_REST ? SHORTER_REST : 0;
    } else if (c->lost_ns > MOST_LOST * plain) {
        c->lost_ns = 0;
        c->n_rest = c->next_rest > 0 ? c->next_rest : FIRST_REST;
        c->next_rest = 2 * c->n_rest < LONGEST_REST ? 2 * c->n_rest : LONGEST_REST;
        c->rest_sequences = n_sequences;
    }
}

/* Whether a step of n tokens or a smaller one ran. */
static bool is_known(const nrd_step_costs *c, int32_t n)
{
    for (n = filled(c, n); n > 0; n--) {
        if (c->ns[n] > 0) {
            return true;
        }
    }
    return false;
}

static float lag_cost(const nrd_step_costs *c, int32_t lag)
{
    return lag <= NRD_COST_TOKENS ? cost_of(c, lag) : cost_of(c, NRD_COST_TOKENS) * (float)lag / NRD_COST_TOKENS;
}

/* The next token of an offer is guessed, too. */
static void guess_one(guessing *g, const nrd_draft_offer *o)
{
    if (!o->passes || (o->n_passes > 0 && o->keep > 0)) {
        return;
    }
    for (int32_t i = o->keep; i < o->keep + (o->n_passes > 0 ? o->n_passes : 1); i++) {
        int32_t *n = &g->in_pass[i];
        g->ns += cost_of(o->passes, *n + 1) - (*n > 0 ? cost_of(o->passes, *n) : 0);
        ++*n;
    }
    g->lag_ns += o->keep == 0 && o->lag > 0 ? lag_cost(o->passes, o->lag) : 0;
}

/* Offers of which a token is left, as a heap: on top the one whose next token is likeliest to be right, of equal ones the first. */
typedef struct candidate {
    float next; /* how likely its next token is right */
    int32_t of; /* the offer's number */
} candidate;

typedef struct likeliest {
    int32_t n;
    candidate at[NRD_COST_TOKENS];
} likeliest;

static bool is_likelier(candidate a, candidate b)
{
    return a.next > b.next || (a.next == b.next && a.of < b.of);
}

static void sink(likeliest *h, int32_t at)
{
    const candidate down = h->at[at];
    for (int32_t child; (child = 2 * at + 1) < h->n; at = child) {
        child += child + 1 < h->n && is_likelier(h->at[child + 1], h->at[child]);
        if (!is_likelier(h->at[child], down)) {
            break;
        }
        h->at[at] = h->at[child];
    }
    h->at[at] = down;
}

static void gather(likeliest *h, const nrd_draft_offer *offers, int32_t n)
{
    h->n = 0;
    for (int32_t i = 0; i < n; i++) {
        if (offers[i].keep < offers[i].n) {
            h->at[h->n++] = (candidate){offers[i].next, i};
        }
    }
    for (int32_t i = h->n / 2 - 1; i >= 0; i--) {
        sink(h, i);
    }
}

/* One token more, of the offer whose next one is likeliest to be right: that is when all before it are. Returns that
 * likelihood; 0: nothing is left. *which: the offer's number. */
static float keep_one(likeliest *h, nrd_draft_offer *offers, guessing *g, int32_t *which)
{
    if (h->n == 0) {
        return 0;
    }
    candidate *top = &h->at[0];
    nrd_draft_offer *best = &offers[top->of];
    const float likely = top->next;
    *which = top->of;
    guess_one(g, best);
    best->keep++;
    if (best->keep < best->n) {
        top->next = best->likely ? best->likely[best->keep] : top->next * best->rate;
    } else {
        *top = h->at[--h->n];
    }
    sink(h, 0);
    return likely;
}

/* Keeps what was asked for, as far as `most` goes; returns how many tokens that are. */
static int32_t keep_asked(nrd_draft_offer *offers, int32_t n, int32_t most)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        nrd_draft_offer *o = &offers[i];
        o->keep = o->rate <= 1 ? 0 : o->n < most - kept ? o->n : most - kept;
        o->next = o->rate > 1 || o->n == 0 ? 0 : o->likely ? o->likely[0] : o->rate;
        kept += o->keep;
    }
    return kept;
}

/* Whether drafts that are left out may be tried nevertheless. without: what the step without them takes; more: what all of them take on top;
 * none: there are none that could be left out. */
static bool is_trial(nrd_step_costs *c, float without, float more, bool none)
{
    if (!none) {
        c->trial_ns = more;
    }
    c->refused_ns += none && !c->rests ? 0 : without;
    return !none && c->refused_ns * TRIALS > c->trial_ns;
}

/* Whether this step, of n tokens without them, has no drafts: their rest is not over, though there are half as many sequences or fewer; or
 * what a step without takes is not known, or not for long. */
static bool has_none(nrd_step_costs *c, int32_t n)
{
    if (2 * n <= c->rest_sequences) {
        c->n_rest = c->rest_sequences = 0;
    }
    const int32_t sure = c->overlaps ? c->n_heard[filled(c, n)] : SURE;
    return c->n_rest > 0 || !is_known(c, n) || c->n_drafted >= (sure == 0 ? 8 : sure < SURE ? 32 : 100);
}

void nrd_costs_choose(nrd_step_costs *c, int32_t n_tokens, nrd_draft_offer *offers, int32_t n_offers, int32_t most)
{
    const int32_t asked = keep_asked(offers, n_offers, most);
    int32_t best = 0, n = n_tokens + asked, room = most - asked < NRD_COST_TOKENS - n ? most - asked : NRD_COST_TOKENS - n;
    const float without = cost_of(c, n < NRD_COST_TOKENS ? n : NRD_COST_TOKENS);
    float gained = (float)n, likely, took = without;
    double speed = LEAST_GAIN * (double)gained / (double)without;
    int32_t order[NRD_COST_TOKENS]; /* whose tokens they are, the likeliest first */
    neighbours near[2] = {0};
    guessing g = {0};
    likeliest heap;

    gather(&heap, offers, room > 0 ? n_offers : 0); /* there is room only where a step has fewer sequences than NRD_COST_TOKENS */
    /* The gain of one more only falls, but its cost comes in jumps: all numbers are looked at. */
    int32_t tried = 0;
    while (tried < room && (likely = keep_one(&heap, offers, &g, &order[tried])) > 0) {
        tried++;
        gained += likely;
        const int32_t rows = n + (c->recomputes ? 2 * tried : tried);
        took = drafted_cost(c, rows < NRD_COST_TOKENS ? rows : NRD_COST_TOKENS, near) + g.ns;
        const double with = (double)gained / (double)(took + g.lag_ns / LAG_STEPS);
        if (with > speed) {
            speed = with;
            best = tried;
        }
    }
    if (best > 0 || asked > 0) {
        c->refused_ns = 0;
    } else if (is_trial(c, without, took + g.lag_ns - without + c->waits_ns, tried == 0)) {
        c->refused_ns = 0;
        best = tried;
    }
    const bool none = has_none(c, n);
    best = none ? 0 : best;
    c->rests = none && asked == 0; /* the next one is planned ahead, as without drafts */
    c->n_drafted = best > 0 ? c->n_drafted + 1 : 0;
    (void)keep_asked(offers, n_offers, most);
    for (int32_t i = 0; i < best; i++) {
        offers[order[i]].keep++;
    }
    for (int32_t i = 0; i < n_offers; i++) {
        offers[i].keep = offers[i].whole && offers[i].keep < offers[i].n ? 0 : offers[i].keep;
    }
}
