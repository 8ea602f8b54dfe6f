/* SPDX-License-Identifier: Apache-2.0
 * device/plugin/plugin.h - what every device plug-in is linked with.
 *
 * Purpose   plugin.c exports the id that the plug-in was compiled with, and has the functions of
 *           base/error.h by those of the program that opened the plug-in: an error has one maker.
 * Owner     nrd_plugin_host is called first thing in nrd_device_plugin, any thread.
 */
#ifndef NRD_DEVICE_PLUGIN_PLUGIN_H
#define NRD_DEVICE_PLUGIN_PLUGIN_H

#include "nereid/device.h"
#include "nereid/export.h"

#ifdef __cplusplus
extern "C" {
#endif

extern NRD_API const char nrd_device_plugin_id[];
NRD_API nrd_error *nrd_device_plugin(const nrd_device_host *host, const nrd_device_config *config,
                                     nrd_device **out);
void nrd_plugin_host(const nrd_device_host *host); /* borrows for the life of the process */

#ifdef __cplusplus
}
#endif
#endif
