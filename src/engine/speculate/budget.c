/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/budget.h"

#include <stddef.h>

/* Nothing is known of larger steps than ran: each token more is taken for so much of the largest known one. Too
 * little rather than too much, since a step that is tried is known afterwards. */
static const float UNKNOWN_TOKEN = 0.01f;
static const float NEWEST = 0.2f; /* share of the newest step in what is believed: contexts grow, machines differ */
static const float MOST_WAIT = 0.25f; /* of a step, for the host */
static const double LEAST_GAIN = 1.01; /* for drafts at all: what is believed of costs is no better than that */
static const float TRIALS = 0.01f; /* of the time of steps whose drafts were left out */
enum { REFUSED_STEPS = 32 }; /* in a row, from which on drafts rest until the next trial */
enum { DRAFTED_STEPS = 100 }; /* in a row, behind which one step has no drafts */
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

static void hear(const nrd_step_costs *c, float ns[], int32_t n_tokens, uint64_t took)
{
    if (n_tokens <= 0 || n_tokens > NRD_COST_TOKENS) {
        return;
    }
    float *known = &ns[filled(c, n_tokens)];
    *known = *known > 0 ? *known + ((float)took - *known) * NEWEST : (float)took;
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

/* What late steps take more is taken off them: by so much as what is left is above what those planned ahead take, the first of which comes
 * behind a late one. */
void nrd_costs_hear(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    if (c->after_late) {
        const float more = cost_of(c, n_tokens) - (float)ns, most = MOST_WAIT * (float)ns;
        c->waits_ns += (more < -most ? -most : more < most ? more : most) * (c->waits_ns > 0 ? NEWEST : 1);
        c->waits_ns = c->waits_ns > 0 ? c->waits_ns : 0;
        c->after_late = false;
    }
    hear(c, c->ns, n_tokens, ns);
}

void nrd_costs_hear_late(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    c->after_late = true;
    hear(c, c->ns, n_tokens, (uint64_t)((float)ns > 2 * c->waits_ns ? (float)ns - c->waits_ns : (float)ns));
}

void nrd_costs_hear_drafted(nrd_step_costs *c, int32_t n_tokens, uint64_t ns)
{
    c->after_late = false;
    hear(c, c->drafted_ns, n_tokens, ns);
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

/* Whether drafts that are left out may be tried nevertheless. n: tokens of the step without them, which takes `without`; more: what all of
 * them take on top; none: there are none that could be left out. */
static bool is_trial(nrd_step_costs *c, int32_t n, float without, float more, bool none)
{
    if (!none) {
        c->n_refused++;
        c->trial_ns = more;
        c->refused_tokens = n;
    }
    c->refused_ns += none && !c->rests ? 0 : without;
    const bool is_due = c->refused_ns * TRIALS > c->trial_ns;
    c->rests = c->n_refused >= REFUSED_STEPS && !is_due && 2 * n > c->refused_tokens;
    return is_due && !none;
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
        c->n_refused = 0;
        c->refused_ns = 0;
        c->rests = false;
    } else if (is_trial(c, n, without, took + g.lag_ns - without, tried == 0)) {
        c->refused_ns = 0;
        best = tried;
    }
    if (!is_known(c, n) || c->n_drafted >= DRAFTED_STEPS) {
        best = 0;
        c->rests = asked == 0; /* the next one is planned ahead, as without drafts */
    }
    c->n_drafted = best > 0 ? c->n_drafted + 1 : 0;
    (void)keep_asked(offers, n_offers, most);
    for (int32_t i = 0; i < best; i++) {
        offers[order[i]].keep++;
    }
    for (int32_t i = 0; i < n_offers; i++) {
        offers[i].keep = offers[i].whole && offers[i].keep < offers[i].n ? 0 : offers[i].keep;
    }
}
