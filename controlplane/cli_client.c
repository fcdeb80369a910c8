/* The way to conflux-cli. This program is the keeper, and links neither JSON nor TLS: the commands that need them are a
 * program of their own. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cp_find_program(const char *name, const char *variable, char out[PATH_MAX], cp_err *err) {
    static const char *const places[] = {"", "../libexec/conflux/"};
    const char *named = getenv(variable);
    if (named && *named) {
        snprintf(out, PATH_MAX, "%s", named);
        return access(out, X_OK) == 0 ? 0 : cp_fail(err, CP_E_NOT_FOUND, "%s: %s cannot be executed", variable, out);
    }
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return cp_fail(err, CP_E_INTERNAL_ERROR, "cannot read /proc/self/exe");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (snprintf(out, PATH_MAX, "%s/%s%s", self, places[i], name) < PATH_MAX && access(out, X_OK) == 0) return 0;
    }
    return cp_fail(err, CP_E_NOT_FOUND, "%s is neither beside this program nor in ../libexec/conflux", name);
}

int cp_cli_client(char **argv) {
    char path[PATH_MAX];
    cp_err err;
    if (cp_find_program("conflux-cli", "CONFLUX_CLI", path, &err) < 0) {
        fprintf(stderr, "conflux: %s\n", err.msg);
        return 125;
    }
    execv(path, argv - 1); /* from the program's own name on */
    fprintf(stderr, "conflux: %s: %s\n", path, strerror(errno));
    return 125;
}
