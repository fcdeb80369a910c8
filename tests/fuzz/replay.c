/* Runs a fuzz target over each file of a corpus folder, once, in any build. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/fd.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 16 << 20 };

static int replay(const char *folder, const char *name) {
    cp_autobuf cp_buf path = {0};
    cp_buf_addf(&path, "%s/%s", folder, name);
    cp_autofree char *text = NULL;
    size_t n;
    if (cp_read_file(cp_buf_z(&path), INPUT_MAX, &text, &n) < 0) {
        perror(cp_buf_z(&path));
        return -1;
    }
    /* An exact copy: ASan sees a read one byte behind the input. */
    uint8_t *input = malloc(n ? n : 1);
    if (!input) return -1;
    if (n) memcpy(input, text, n);
    fprintf(stderr, "%s\n", name); /* the last line names the input of a crash */
    LLVMFuzzerTestOneInput(input, n);
    free(input);
    return 0;
}

int main(int argc, char **argv) {
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s FOLDER (which must exist)\n", argv[0]);
        return 2;
    }
    int count = 0, failed = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        failed |= replay(argv[1], e->d_name);
        count++;
    }
    closedir(dir);
    fprintf(stderr, "%d inputs\n", count);
    return failed || count == 0;
}
