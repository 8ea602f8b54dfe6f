/* nereid/backend.h - what this server offers backends beyond Triton's C API.
 *
 * Purpose   A backend that finds out while it serves that a model cannot go on.
 * Owner     Any thread, also one of the model; returns at once.
 * ABI       Exported by libtritonserver.so. A backend that also runs in other servers refers to it
 *           weakly (#pragma weak) and does without where it is NULL.
 */
#ifndef NEREID_BACKEND_H
#define NEREID_BACKEND_H

#include "triton/core/tritonbackend.h"

/* The model is no longer ready, with this reason (copied) in the repository index and in the errors of
 * requests to come. Its running requests are answered by the backend as always; when they are, the
 * model is finalized, and it may be loaded again. Of an older copy of the model: nothing happens. */
__attribute__((visibility("default"))) void nrd_backend_model_failed(TRITONBACKEND_Model *model,
                                                                     const char *reason);

#endif
