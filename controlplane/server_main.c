/* conflux-server: started by the keeper, never by hand. */
#include "app.h"

#include "base/buf.h"
#include "keeper/client.h"

#include <stdio.h>

static bool option(char **argv, const char *name, int *fd) {
    uint64_t n;
    if (strcmp(argv[0], name) != 0 || !cp_str_u64(cp_str_of(argv[1]), 1 << 20, &n)) return false;
    *fd = (int)n;
    return true;
}

/* A keeper that was started before its program was replaced may be older than we are, and know no life line. */
int main(int argc, char **argv) {
    int keeper, life = -1;
    if ((argc == 3 || argc == 5) && option(argv + 1, "--keeper-fd", &keeper) &&
        (argc == 3 || option(argv + 3, "--life-fd", &life))) {
        if (life > 0) (void)cp_life_begin(life);
        return cp_app_run(keeper);
    }
    fputs("conflux-server is started by `conflux serve`; see `conflux --help`\n", stderr);
    return 2;
}
