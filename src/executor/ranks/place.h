/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/place.h - which of a launcher's ranks this process is, by its environment.
 * Stateless. Sources: Open MPI 4.1 and 5 (OMPI_COMM_WORLD_*), Slurm's srun(1), MPICH's Hydra (PMI_*, MPI_LOCAL*), Kubernetes'
 * LeaderWorkerSet (LWS_*). */
#ifndef NRD_EXECUTOR_RANKS_PLACE_H
#define NRD_EXECUTOR_RANKS_PLACE_H

#include <stdbool.h>
#include <stdint.h>

enum { NRD_LAUNCHED_MAX = 64 };

typedef struct nrd_place {
    int32_t rank, size;
    int32_t n_here; /* ranks on this host; 0: not told */
    int32_t local;  /* number among them */
    bool is_pod;    /* one process a host, which has as many ranks of an engine as each other host */
    bool by_mpi;    /* Open MPI's library can ask the launcher where the others are */
    char job[64];   /* the same in all processes of this job and host, and in no others */
} nrd_place;

/* false: started alone, or NEREID_LAUNCHED=0. */
bool nrd_place_find(nrd_place *p);
bool nrd_place_is_over_hosts(const nrd_place *p); /* some of the ranks are on other hosts */

/* The number in an environment variable. */
int32_t nrd_place_number(const char *name, int32_t fallback);
/* How many tasks node `node` has by Slurm's list "2(x3),1"; 0: none. */
int32_t nrd_place_tasks(const char *list, int32_t node);
/* The first of Slurm's list of nodes, "gpu[01-04],x" -> "gpu01"; false: it does not fit out. */
bool nrd_place_first_node(const char *list, char *out, int size);

#endif
