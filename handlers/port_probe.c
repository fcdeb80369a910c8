#include "handlers/port_probe.h"

#include <stdio.h>

bool cp_port_line_listens(const char *line, uint16_t port) {
    unsigned local, state;
    /* "  sl: ADDRESS:PORT ADDRESS:PORT ST …", all hexadecimal; ST 0A is LISTEN */
    if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) != 2) return false;
    return local == port && state == 0x0A;
}

static bool listed(const char *path, uint16_t port) {
    char line[512];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) found = cp_port_line_listens(line, port);
    fclose(f);
    return found;
}

bool cp_port_listening(uint16_t port) { return listed("/proc/net/tcp", port) || listed("/proc/net/tcp6", port); }
