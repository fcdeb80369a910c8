#include "base/act.h"

#include "base/buf.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];

static struct {
    bool on;
    uid_t uid;
    gid_t gid;
    gid_t *groups, *own_groups;
    int ngroups, nown;
} who;

static _Thread_local unsigned depth;
static _Thread_local bool paused;
static _Thread_local caps own_caps;

int cp_act_setup(const char *name, uid_t uid, gid_t gid, cp_err *err) {
    who.uid = uid;
    who.gid = gid;
    who.ngroups = 1;
    who.groups = cp_alloc(sizeof *who.groups);
    who.groups[0] = gid;
    if (name) {
        int n = 0;
        getgrouplist(name, gid, NULL, &n);
        who.groups = cp_realloc(who.groups, (size_t)(n > 0 ? n : 1) * sizeof *who.groups);
        who.ngroups = n > 0 ? n : 1;
        if (n > 0 && getgrouplist(name, gid, who.groups, &who.ngroups) < 0)
            return cp_fail(err, CP_E_INTERNAL_ERROR, "the groups of %s change while they are read", name);
    }
    who.nown = getgroups(0, NULL);
    who.own_groups = cp_alloc((size_t)(who.nown > 0 ? who.nown : 1) * sizeof *who.own_groups);
    if (who.nown < 0 || getgroups(who.nown, who.own_groups) != who.nown)
        return cp_fail_sys(err, CP_E_INTERNAL_ERROR, errno, "our own groups");
    who.on = true;
    int at_death = 0; /* a change of ids clears it */
    prctl(PR_GET_PDEATHSIG, &at_death);
    int rc = cp_act_begin(err); /* what does not work is found now */
    if (rc == 0) cp_act_end();
    prctl(PR_SET_PDEATHSIG, at_death);
    return rc;
}

static int set_caps(const caps data) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    return (int)syscall(SYS_capset, &head, data);
}

/* Whoever cannot go back would serve the next client as the wrong user: that ends the program. */
static void become_self(void) {
    if (set_caps(own_caps) == 0) {
        setfsuid(geteuid());
        setfsgid(getegid());
        bool groups = syscall(SYS_setgroups, (long)who.nown, who.own_groups) == 0;
        if (groups && (uid_t)setfsuid((uid_t)-1) == geteuid() && set_caps(own_caps) == 0) return;
    }
    fprintf(stderr, "conflux: a thread cannot take its own ids back\n");
    abort();
}

/* Capabilities go last: the calls before need them. An id that is not taken says so only when it is asked for. */
static bool become_user(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    if (syscall(SYS_capget, &head, own_caps) < 0) return false;
    if (syscall(SYS_setgroups, (long)who.ngroups, who.groups) < 0) return false;
    caps none;
    for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        none[i] = own_caps[i];
        none[i].effective = 0;
    }
    setfsgid(who.gid);
    setfsuid(who.uid);
    bool ok = (uid_t)setfsuid((uid_t)-1) == who.uid && (gid_t)setfsgid((gid_t)-1) == who.gid && set_caps(none) == 0;
    if (!ok) become_self();
    return ok;
}

int cp_act_begin(cp_err *err) {
    if (!who.on || depth++) return 0;
    if (become_user()) return 0;
    depth = 0;
    return cp_fail(err, CP_E_PERMISSION_DENIED, "cannot act as the user of --child-user");
}

void cp_act_end(void) {
    if (who.on && depth && --depth == 0) become_self();
}

void cp_act_pause(void) {
    if (!depth) return;
    paused = true;
    int sys = errno;
    become_self();
    errno = sys;
}

void cp_act_resume(void) {
    if (!paused) return;
    paused = false;
    int sys = errno;
    if (!become_user()) {
        fprintf(stderr, "conflux: a thread cannot act as the user of --child-user any more\n");
        abort();
    }
    errno = sys;
}

uid_t cp_act_uid(void) { return depth && !paused ? who.uid : geteuid(); }

bool cp_act_user(uid_t *uid) {
    if (who.on) *uid = who.uid;
    return who.on;
}
