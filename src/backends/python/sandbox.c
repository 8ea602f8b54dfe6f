/* SPDX-License-Identifier: Apache-2.0
 * The sandbox of stub processes: a filter of system calls that a thread puts on itself before it starts
 * them. Who leaves the list out of sight of it: calls of another architecture, and clone3, whose flags a
 * filter cannot read (libraries fall back to clone). */
#include "backends/python/sandbox.h"

#include "base/log.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

/* Other processes' memory, mounts, namespaces, kernel modules and programs, keys, clocks, and io_uring,
 * which does what this filter would refuse. */
static const int refused[] = {
    SYS_ptrace, SYS_process_vm_writev, SYS_process_vm_readv, SYS_kcmp, SYS_mount, SYS_umount2, SYS_pivot_root,
    SYS_chroot, SYS_setns, SYS_unshare, SYS_bpf, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_perf_event_open, SYS_userfaultfd, SYS_reboot,
    SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime,
    SYS_adjtimex, SYS_sethostname, SYS_setdomainname, SYS_syslog, SYS_vhangup, SYS_name_to_handle_at,
    SYS_open_by_handle_at, SYS_lookup_dcookie, SYS_nfsservctl, SYS_personality,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
#endif
#ifdef SYS_open_tree
    SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
#endif
#ifdef SYS_mount_setattr
    SYS_mount_setattr,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
#endif
#ifdef SYS_iopl
    SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
};
enum { N_REFUSED = sizeof refused / sizeof *refused, MAX_STEPS = N_REFUSED + 16 };

#ifdef ARCH

static void add(struct sock_filter *f, size_t *n, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    f[(*n)++] = (struct sock_filter){code, jt, jf, k};
}

static size_t make_filter(struct sock_filter f[MAX_STEPS])
{
    const uint32_t deny = SECCOMP_RET_ERRNO | EPERM, old = SECCOMP_RET_ERRNO | ENOSYS;
    const uint16_t load = BPF_LD | BPF_W | BPF_ABS, is = BPF_JMP | BPF_JEQ | BPF_K, ret = BPF_RET | BPF_K;
    size_t n = 0;

    add(f, &n, load, offsetof(struct seccomp_data, arch), 0, 0);
    add(f, &n, is, ARCH, 1, 0);
    add(f, &n, ret, deny, 0, 0);
    add(f, &n, load, offsetof(struct seccomp_data, nr), 0, 0);
    add(f, &n, BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32 */
    add(f, &n, ret, deny, 0, 0);
#ifdef SYS_clone3
    add(f, &n, is, SYS_clone3, 0, 1);
    add(f, &n, ret, old, 0, 0);
#endif
    for (size_t i = 0; i < N_REFUSED; i++) { /* to the refusal, which comes after all of them and clone's part */
        add(f, &n, is, (uint32_t)refused[i], (uint8_t)(N_REFUSED - i - 1 + 4), 0);
    }
    add(f, &n, is, SYS_clone, 0, 2);
    add(f, &n, load, offsetof(struct seccomp_data, args), 0, 0);
    add(f, &n, BPF_JMP | BPF_JSET | BPF_K,
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, 1,
        0);
    add(f, &n, ret, SECCOMP_RET_ALLOW, 0, 0);
    add(f, &n, ret, deny, 0, 0);
    return n;
}

/* A mount namespace of this thread with an empty /tmp. Needs the right to mount; without it /tmp is shared. */
static void own_tmp(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0) {
        NRD_LOG_VERBOSE(1, "sandbox of Python models: /tmp is shared (%s)", strerror(errno));
    }
}

static bool enter(bool has_tmp, char *why, size_t n)
{
    struct sock_filter steps[MAX_STEPS];
    const struct sock_fprog program = {(unsigned short)make_filter(steps), steps};

    if (has_tmp) {
        own_tmp();
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) {
        snprintf(why, n, "the kernel refuses a filter of system calls: %s", strerror(errno));
        return false;
    }
    return true;
}

#else

static bool enter(bool has_tmp, char *why, size_t n)
{
    (void)has_tmp;
    snprintf(why, n, "there is none for this processor");
    return false;
}

#endif

typedef struct job {
    void (*start)(void *arg);
    void *arg;
    bool has_tmp, ok;
    char *why;
    size_t n;
} job;

static void *run(void *arg)
{
    job *j = arg;
    j->ok = enter(j->has_tmp, j->why, j->n);
    if (j->ok) {
        j->start(j->arg);
    }
    return NULL;
}

bool nrd_py_sandbox_run(void (*start)(void *arg), void *arg, bool has_tmp, char *why, size_t n)
{
    job j = {.start = start, .arg = arg, .has_tmp = has_tmp, .why = why, .n = n};
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, &j) != 0) {
        snprintf(why, n, "no thread for it");
        return false;
    }
    pthread_join(thread, NULL);
    return j.ok;
}
