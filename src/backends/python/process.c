/* SPDX-License-Identifier: Apache-2.0
 * The process of an instance: its first start, and new ones in the place of those that died. */
#include "backends/python/backend.h"

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

TRITONSERVER_Error *nrd_py_instance_start(nrd_py_instance *in)
{
    nrd_py_model *m = in->model;
    nrd_py_conn *c = NULL;
    nrd_str args = {0};
    char *ready = NULL;

    NRD_TB_TRY(nrd_py_conn_start(&c, m, in->name));
    const struct {
        const char *key, *value;
    } texts[] = {
        {"model_config", m->config_text},
        {"model_instance_kind", in->kind},
        {"model_instance_name", in->name},
        {"model_repository", m->folder},
        {"model_name", m->config.name},
    };
    nrd_str_puts(&args, "{");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        nrd_json_put_cstr(&args, texts[i].key);
        nrd_str_putc(&args, ':');
        nrd_json_put_cstr(&args, texts[i].value);
        nrd_str_putc(&args, ',');
    }
    nrd_str_printf(&args,
                   "\"model_instance_device_id\":\"%d\",\"model_version\":\"%llu\","
                   "\"decoupled\":%s,\"remote\":%s}",
                   (int)in->device, (unsigned long long)m->config.version,
                   m->config.decoupled ? "true" : "false", c->remote ? "true" : "false");
    TRITONSERVER_Error *err = nrd_tb_error(nrd_str_error(&args));
    if (!err) {
        err = nrd_py_conn_text(c, NRD_PY_CMD_INITIALIZE, nrd_str_cstr(&args), &ready);
    }
    nrd_str_fini(&args);
    if (err) {
        NRD_LOG_INFO("Failed to initialize Python stub: %s", TRITONSERVER_ErrorMessage(err));
        nrd_py_conn_stop(c);
        return err;
    }
    c->initialized = true;
    c->has_ready = !strcmp(ready, "1");
    free(ready);
    pthread_mutex_lock(&in->conn_mu);
    in->conn = c;
    pthread_mutex_unlock(&in->conn_mu);
    pthread_mutex_lock(&c->mu);
    c->instance = in;
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

TRITONSERVER_Error *nrd_py_instance_revive(nrd_py_instance *in)
{
    nrd_py_conn *old = in->conn;
    if (old && !atomic_load(&old->dead)) {
        return NULL;
    }
    if (old) {
        pthread_mutex_lock(&in->conn_mu);
        in->conn = NULL;
        pthread_mutex_unlock(&in->conn_mu);
        nrd_py_conn_stop(old);
    }
    NRD_LOG_WARN("restarting the stub process of '%s'", in->name);
    return nrd_py_instance_start(in);
}

static void restart_over(nrd_py_instance *in)
{
    pthread_mutex_lock(&in->conn_mu);
    in->n_restarts--;
    pthread_cond_broadcast(&in->restarted);
    pthread_mutex_unlock(&in->conn_mu);
}

static void *restart(void *arg)
{
    nrd_py_instance *in = arg;
    pthread_mutex_lock(&in->mu);
    if (!in->ending && in->conn) { /* no connection: the last try did not work out */
        nrd_tb_log_error(nrd_py_instance_revive(in), "restarting a stub process");
    }
    pthread_mutex_unlock(&in->mu);
    restart_over(in);
    return NULL;
}

void nrd_py_instance_restart(nrd_py_instance *in)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, restart, in) == 0) {
        pthread_detach(thread);
    } else {
        restart_over(in); /* the next execution does it */
    }
}
