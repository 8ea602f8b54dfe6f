/* SPDX-License-Identifier: Apache-2.0
 * fault.so: a test's fault of the GPU. Preloaded into a process (LD_PRELOAD), it runs a kernel that traps
 * in the process's primary context whenever the file appears that NEREID_TEST_FAULT names. */
#include <cuda_runtime.h>

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static __global__ void trap_kernel(void)
{
    asm volatile("trap;");
}

static void *wait_for_file(void *file)
{
    for (;;) {
        while (access((const char *)file, F_OK) != 0) {
            usleep(5000);
        }
        trap_kernel<<<1, 1>>>();
        (void)cudaDeviceSynchronize();
        while (access((const char *)file, F_OK) == 0) {
            usleep(5000);
        }
    }
    return NULL;
}

static __attribute__((constructor)) void start(void)
{
    pthread_t thread;
    char *file = getenv("NEREID_TEST_FAULT");

    unsetenv("LD_PRELOAD"); /* not in its children */
    if (file && pthread_create(&thread, NULL, wait_for_file, file) == 0) {
        (void)pthread_detach(thread);
    }
}
