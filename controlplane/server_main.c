/* conflux-server: started by the keeper, never by hand. */
#include "app.h"

#include "base/buf.h"

#include <stdio.h>

int main(int argc, char **argv) {
    uint64_t fd;
    if (argc == 3 && strcmp(argv[1], "--keeper-fd") == 0 && cp_str_u64(cp_str_of(argv[2]), 1 << 20, &fd))
        return cp_app_run((int)fd);
    fputs("conflux-server is started by `conflux serve`; see `conflux --help`\n", stderr);
    return 2;
}
