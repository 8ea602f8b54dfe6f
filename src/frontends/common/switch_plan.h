/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/switch_plan.h - which models have to go so that another one fits: a pure function.
 *
 * Purpose   The memory rule of several models in one server (switcher.h), apart from threads and time.
 * Owner     Any thread; nothing is kept.
 * Units     Bytes.
 */
#ifndef NRD_FRONTENDS_COMMON_SWITCH_PLAN_H
#define NRD_FRONTENDS_COMMON_SWITCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ABSENT - LOADING - READY - LEAVING - ABSENT; a load that fails: LOADING - ABSENT. Only an absent model
 * takes no memory. */
typedef enum {
    NRD_SWITCH_ABSENT,
    NRD_SWITCH_LOADING,
    NRD_SWITCH_READY,
    NRD_SWITCH_LEAVING,
} nrd_switch_state;

typedef struct nrd_switch_slot {
    nrd_switch_state state;
    uint64_t bytes;    /* that it takes, or would take */
    uint64_t used_ns;  /* when a request last began or ended */
    uint32_t n_leases; /* requests under way */
    bool pinned;       /* never has to go */
    bool is_victim;    /* out: has to go */
} nrd_switch_slot;

typedef enum {
    NRD_SWITCH_FITS,  /* now; nobody has to go */
    NRD_SWITCH_EVICT, /* once the victims, which are all idle, have gone */
    NRD_SWITCH_WAIT,  /* once the victims are idle (they take no new requests), or what is leaving has gone */
    NRD_SWITCH_NEVER, /* not even alone with the pinned ones */
} nrd_switch_verdict;

/* What loading slots[wanted], which is absent, asks of the others. Victims are those that were not used
 * for the longest time, none of whom could stay; all of them or none. Writes is_victim of every slot.
 * *out_room: what is left beside the pinned ones, at most the budget. */
nrd_switch_verdict nrd_switch_plan(nrd_switch_slot *slots, size_t n, size_t wanted, uint64_t budget,
                                   uint64_t *out_room);

#endif
