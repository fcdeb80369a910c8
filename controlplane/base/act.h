#pragma once
/* With --child-user the API acts as that user wherever it touches files for a client: each worker thread takes the
 * user's file system ids, groups and no capabilities for the time of its work, so that the kernel decides what may be
 * done (as kernel nfsd and samba do it; checking first and acting as root afterwards would leave a gap).
 *
 * Ids belong to a thread here: raw system calls, because those of libc change all threads. Never on the loop thread: a
 * change of ids clears the signal that tells it of its keeper's death. Without cp_act_setup all of this does nothing.
 */
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* Once, before any other thread exists. name NULL: no other groups than gid. */
int cp_act_setup(const char *name, uid_t uid, gid_t gid, cp_err *err);
/* From here to cp_act_end this thread acts as the user. Begins may be nested. -1 with PERMISSION_DENIED: it does not.
 */
int cp_act_begin(cp_err *err);
void cp_act_end(void);
/* From pause to resume the thread is itself again, for files of our own (the state folder). Does nothing on a thread
 * that does not act. Not nested. */
void cp_act_pause(void);
void cp_act_resume(void);
/* The owner of what this thread makes. */
uid_t cp_act_uid(void);
/* The user that was set up; false: none. */
bool cp_act_user(uid_t *uid);

/* cp_as_self; until the end of the scope. */
static inline void cp_act_resume_(char *unused) {
    (void)unused;
    cp_act_resume();
}
#define cp_as_self                                                                                                     \
    cp_act_pause();                                                                                                    \
    __attribute__((cleanup(cp_act_resume_), unused)) char cp_as_self_ = 0
