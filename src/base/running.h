/* SPDX-License-Identifier: Apache-2.0
 * base/running.h - what the user's other processes may know of this one.
 *
 * Purpose   A JSON text in $XDG_RUNTIME_DIR/nereid, else /tmp/nereid-UID: a folder that only this user can read
 *           and write. The file's name has the process's number and its start time, so that what a crash
 *           left is told from a later process of the same number, and removed by who looks next.
 * Owner     Any thread, one at a time. These are best efforts: a folder that is not ours alone is not used.
 */
#ifndef NRD_BASE_RUNNING_H
#define NRD_BASE_RUNNING_H

#include <stdint.h>

void nrd_running_tell(const char *json);
void nrd_running_forget(void);

/* Every process that lives and has told something; json as it wrote it, at most 64 KiB. */
typedef void nrd_running_visit(void *user, long pid, const char *json);
void nrd_running_each(nrd_running_visit *visit, void *user);

/* Resident bytes of a process; 0: there is none. */
uint64_t nrd_running_memory(long pid);

#endif
