/* SPDX-License-Identifier: Apache-2.0
 * device/device.h - opening a device by name.
 *
 * Purpose   "cpu" is built in; "cuda" and others are dlopen'ed: nereid_<name>.so beside libnereid.so,
 *           then in $NEREID_DEVICE_DIR. "auto": cuda if it opens, else cpu.
 * Errors    UNSUPPORTED with one line that says why and what to do instead.
 * Lifetime  close through dev->ops->close(dev).
 */
#ifndef NRD_DEVICE_DEVICE_H
#define NRD_DEVICE_DEVICE_H

#include "base/error.h"
#include "nereid/device.h"

nrd_error *nrd_device_open(nrd_device **out, const char *name, const nrd_device_config *config)
    NRD_MUST_USE;
/* Tells also which it is where `name` leaves the choice, for others who must have the same: `name` or a literal. */
nrd_error *nrd_device_open_as(nrd_device **out, const char **out_name, const char *name, const nrd_device_config *config)
    NRD_MUST_USE;
/* The interface that this program was compiled with (NRD_DEVICE_ID); programs of one are of one build. */
const char *nrd_device_id(void);
nrd_error *nrd_cpu_open(nrd_device **out, const nrd_device_config *config) NRD_MUST_USE;

#endif
