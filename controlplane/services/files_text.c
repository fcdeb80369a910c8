#include "services/files.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void cp_file_mode_text(mode_t mode, char out[10]) {
    memcpy(out, "rwxrwxrwx", 10);
    for (int i = 0; i < 9; i++)
        if (!(mode & (0400u >> i))) out[i] = '-';
    if (mode & S_ISUID) out[2] = mode & S_IXUSR ? 's' : 'S';
    if (mode & S_ISGID) out[5] = mode & S_IXGRP ? 's' : 'S';
    if (mode & S_ISVTX) out[8] = mode & S_IXOTH ? 't' : 'T';
}

void cp_file_time_text(struct timespec t, char out[40]) {
    struct tm tm = {0};
    localtime_r(&t.tv_sec, &tm);
    size_t n = strftime(out, 28, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%09ld0", t.tv_nsec);
}

void cp_file_etag(const struct stat *st, char out[64]) {
    snprintf(out, 64, "\"%llx.%09lx-%llx-%llx\"", (unsigned long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
             (unsigned long long)st->st_size, (unsigned long long)st->st_ino);
}
