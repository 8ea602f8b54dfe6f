/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/place.h"

#include "base/env.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int32_t nrd_place_number(const char *name, int32_t fallback)
{
    const char *text = nrd_env(name, NULL);
    return text && *text ? (int32_t)strtol(text, NULL, 10) : fallback;
}

int32_t nrd_place_tasks(const char *list, int32_t node)
{
    for (const char *at = list; at && *at;) {
        char *end = NULL;
        const long n = strtol(at, &end, 10);
        long times = 1;
        if (end == at || n < 0 || n > INT_MAX) {
            return 0;
        }
        if (strncmp(end, "(x", 2) == 0) {
            times = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (times > node) {
            return (int32_t)n;
        }
        node -= (int32_t)times;
        at = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

bool nrd_place_first_node(const char *list, char *out, int size)
{
    const int head = (int)strcspn(list, "[,");
    int number = 0, tail = 0;
    const char *behind = "";

    if (list[head] == '[') {
        number = (int)strcspn(list + head + 1, "-,]");
        behind = strchr(list + head, ']');
        if (!behind) {
            return false;
        }
        behind++;
        tail = (int)strcspn(behind, ",");
    }
    const int n = snprintf(out, (size_t)size, "%.*s%.*s%.*s", head, list, number, list + head + 1, tail, behind);
    return n > 0 && n < size;
}

static void find_slurm(nrd_place *p, const char *step)
{
    const int32_t node = nrd_place_number("SLURM_NODEID", 0);

    p->rank = nrd_place_number("SLURM_PROCID", -1);
    p->size = nrd_place_number("SLURM_STEP_NUM_TASKS", 0);
    p->local = nrd_place_number("SLURM_LOCALID", p->rank);
    p->n_here = nrd_place_number("SLURM_STEP_NUM_NODES", 1) > 1
                    ? nrd_place_tasks(nrd_env("SLURM_STEP_TASKS_PER_NODE", nrd_env("SLURM_TASKS_PER_NODE", "")), node)
                    : p->size;
    /* Several nodes of Slurm's may be one machine. */
    snprintf(p->job, sizeof p->job, "slurm-%s.%s.%d", nrd_env("SLURM_JOB_ID", "0"), step, node);
}

static void find_pod(nrd_place *p)
{
    p->rank = nrd_place_number("LWS_WORKER_INDEX", -1);
    p->size = nrd_place_number("LWS_GROUP_SIZE", 0);
    p->n_here = 1;
    p->is_pod = true;
    snprintf(p->job, sizeof p->job, "pod-%.40s", nrd_env("LWS_LEADER_ADDRESS", ""));
}

bool nrd_place_find(nrd_place *p)
{
    const char *job = nrd_env("PMIX_NAMESPACE", NULL), *step = nrd_env("SLURM_STEP_ID", NULL);

    *p = (nrd_place){.rank = nrd_place_number("OMPI_COMM_WORLD_RANK", -1), .size = nrd_place_number("OMPI_COMM_WORLD_SIZE", 0)};
    p->by_mpi = job || p->rank >= 0;
    if (p->rank >= 0 && p->size > 0) {
        p->n_here = nrd_place_number("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
        p->local = nrd_place_number("OMPI_COMM_WORLD_LOCAL_RANK", p->rank);
        snprintf(p->job, sizeof p->job, "ompi-%s", job ? job : nrd_env("OMPI_MCA_ess_base_jobid", "0"));
    } else if (step && nrd_env("SLURM_STEP_NUM_TASKS", NULL)) {
        find_slurm(p, step);
    } else if (nrd_place_number("LWS_GROUP_SIZE", 1) > 1) {
        find_pod(p);
    } else {
        p->rank = nrd_place_number("PMI_RANK", -1);
        p->size = nrd_place_number("PMI_SIZE", 0);
        p->n_here = nrd_place_number("MPI_LOCALNRANKS", 0);
        p->local = nrd_place_number("MPI_LOCALRANKID", p->rank);
        snprintf(p->job, sizeof p->job, "pmi-%d", (int)getppid()); /* the launcher's process of this host */
    }
    return p->size > 1 && p->rank >= 0 && p->rank < p->size && nrd_place_number("NEREID_LAUNCHED", 1) != 0;
}

bool nrd_place_is_over_hosts(const nrd_place *p)
{
    return p->n_here > 0 && p->n_here < p->size;
}
