/* What the kernel makes of the mode of a new file: asked for by those who create it private and widen it later. Ruled
 * out: to create a file with the wide mode for a moment, which others would open; and to set the umask in order to read
 * it, since it is that of all threads. */
#include "services/files_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

static int from_umask(mode_t *allowed) {
    char text[512]; /* it stands in the second line, behind the name */
    cp_autofd int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : cp_read_full(fd, text, sizeof text - 1);
    if (n < 0) return -1;
    text[n] = 0;
    const char *line = strstr(text, "\nUmask:");
    /* A kernel that does not tell it (before 4.7): rather too narrow than readable for the wrong ones. */
    *allowed = 0777 & ~(line ? (mode_t)strtoul(line + strlen("\nUmask:"), NULL, 8) : 077);
    return 0;
}

static int from_acl(const char *acl, size_t n, mode_t *allowed) {
    struct posix_acl_xattr_header head;
    struct posix_acl_xattr_entry e;
    mode_t user = 0, group = 0, other = 0;
    bool mask = false;
    if (n < sizeof head) return errno = EINVAL, -1;
    for (size_t at = sizeof head; at + sizeof e <= n; at += sizeof e) {
        memcpy(&e, acl + at, sizeof e);
        mode_t perm = le16toh(e.e_perm) & 7;
        switch (le16toh(e.e_tag)) {
        case ACL_USER_OBJ: user = perm; break;
        case ACL_OTHER: other = perm; break;
        case ACL_GROUP_OBJ: group = mask ? group : perm; break;
        case ACL_MASK:
            group = perm;
            mask = true;
            break;
        default: break; /* named ones: the mask bounds them */
        }
    }
    *allowed = user << 6 | group << 3 | other;
    return 0;
}

int cp_dir_mode(int dir, mode_t *allowed) {
    static const char name[] = "system.posix_acl_default";
    char path[32], some[1024];
    cp_autofree char *all = NULL;
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir); /* it may be open as O_PATH only */
    ssize_t n = getxattr(path, name, some, sizeof some);
    if (n < 0 && errno == ERANGE) {
        all = cp_alloc(XATTR_SIZE_MAX);
        n = getxattr(path, name, all, XATTR_SIZE_MAX);
    }
    if (n > 0) return from_acl(all ? all : some, (size_t)n, allowed);
    if (n < 0 && errno != ENODATA && errno != EOPNOTSUPP) return -1;
    return from_umask(allowed);
}
