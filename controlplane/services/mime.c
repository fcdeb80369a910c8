/* Design notes. What has no known extension is told by its content, as the reference does with file(1). That program
 * cannot be run from here, and its library was ruled out: its compiled rules (8 MB, mapped and searched for each file)
 * buy names of exotic types, while all that a client depends on is the choice between text and base64. So: a few magic
 * numbers, script interpreters, and a strict test for text. Latin-1 counts as binary here, unlike there: as text it
 * would reach the client damaged. */
#include "services/mime.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static const struct ext {
    const char *ext, *type;
} exts[] = {
#define X(ext, type) {ext, type},
#include "schema/mime.def"
#undef X
};

static int ext_cmp(const void *key, const void *entry) { return strcmp(key, ((const struct ext *)entry)->ext); }

const char *cp_mime_by_name(cp_str name) {
    const char *dot = name.n ? memrchr(name.p, '.', name.n) : NULL;
    size_t n = dot ? (size_t)(name.p + name.n - dot - 1) : 0;
    char key[16];
    if (n == 0 || n >= sizeof key) return NULL;
    for (size_t i = 0; i < n; i++) {
        char c = dot[1 + i];
        key[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    key[n] = 0;
    const struct ext *e = bsearch(key, exts, CP_COUNT(exts), sizeof exts[0], ext_cmp);
    return e ? e->type : NULL;
}

static const struct magic {
    unsigned at;
    cp_str bytes;
    const char *type;
} magics[] = {
#define MAGIC(at, lit, type)                                                                                           \
    { at, {lit, sizeof(lit) - 1}, type }
    MAGIC(0, "\x89PNG\r\n\x1a\n", "image/png"),
    MAGIC(0, "\xff\xd8\xff", "image/jpeg"),
    MAGIC(0, "GIF87a", "image/gif"),
    MAGIC(0, "GIF89a", "image/gif"),
    MAGIC(8, "WEBP", "image/webp"),
    MAGIC(8, "WAVE", "audio/x-wav"),
    MAGIC(4, "ftypavif", "image/avif"),
    MAGIC(4, "ftypqt  ", "video/quicktime"),
    MAGIC(4, "ftyp", "video/mp4"),
    MAGIC(0, "%PDF-", "application/pdf"),
    MAGIC(0, "PK\x03\x04", "application/zip"),
    MAGIC(0, "PK\x05\x06", "application/zip"),
    MAGIC(0, "\x1f\x8b", "application/gzip"),
    MAGIC(0, "BZh", "application/x-bzip2"),
    MAGIC(0,
          "\xfd"
          "7zXZ",
          "application/x-xz"),
    MAGIC(0, "\x28\xb5\x2f\xfd", "application/zstd"),
    MAGIC(0, "7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    MAGIC(0, "Rar!\x1a\x07", "application/x-rar"),
    MAGIC(257, "ustar", "application/x-tar"),
    MAGIC(0, "!<arch>\n", "application/x-archive"),
    MAGIC(0, "\0asm", "application/wasm"),
    MAGIC(0, "SQLite format 3\0", "application/vnd.sqlite3"),
    MAGIC(0, "OggS", "audio/ogg"),
    MAGIC(0, "fLaC", "audio/flac"),
    MAGIC(0, "ID3", "audio/mpeg"),
    MAGIC(0, "\x1a\x45\xdf\xa3", "video/x-matroska"),
    MAGIC(0, "wOFF", "font/woff"),
    MAGIC(0, "wOF2", "font/woff2"),
    MAGIC(0, "\xca\xfe\xba\xbe", "application/x-java-applet"),
};

static const char *by_magic(cp_str head) {
    for (size_t i = 0; i < CP_COUNT(magics); i++) {
        const struct magic *m = &magics[i];
        if (head.n >= m->at + m->bytes.n && memcmp(head.p + m->at, m->bytes.p, m->bytes.n) == 0) return m->type;
    }
    return NULL;
}

/* e_type (ELF specification, section "ELF header") in the byte order that e_ident names. */
static const char *by_elf(cp_str head) {
    static const char *const types[] = {NULL, "application/x-object", "application/x-executable",
                                        "application/x-sharedlib", "application/x-coredump"};
    if (head.n < 18 || memcmp(head.p, "\177ELF", 4) != 0) return NULL;
    unsigned type = (unsigned char)head.p[head.p[5] == 2 ? 17 : 16];
    return type < CP_COUNT(types) && types[type] ? types[type] : "application/octet-stream";
}

static bool has(cp_str s, const char *word) { return memmem(s.p, s.n, word, strlen(word)) != NULL; }

static const char *by_script(cp_str head) {
    static const struct {
        const char *word, *type;
    } interpreters[] = {
        {"python", "text/x-script.python"},
        {"perl", "text/x-perl"},
        {"ruby", "text/x-ruby"},
        {"node", "application/javascript"},
        {"php", "text/x-php"},
        {"awk", "text/x-awk"},
        {"lua", "text/x-lua"},
        {"sh", "text/x-shellscript"},
    };
    if (head.n < 3 || memcmp(head.p, "#!", 2) != 0) return NULL;
    const char *nl = memchr(head.p, '\n', head.n);
    cp_str line = {head.p, nl ? (size_t)(nl - head.p) : head.n};
    for (size_t i = 0; i < CP_COUNT(interpreters); i++)
        if (has(line, interpreters[i].word)) return interpreters[i].type;
    return NULL;
}

static bool starts_nocase(cp_str s, const char *word) {
    size_t n = strlen(word);
    return s.n >= n && strncasecmp(s.p, word, n) == 0;
}

static const char *by_markup(cp_str head) {
    if (cp_str_starts(head, CP_STR("<?xml"))) return "text/xml";
    head = cp_str_trim(head);
    return starts_nocase(head, "<!doctype html") || starts_nocase(head, "<html") ? "text/html" : NULL;
}

/* UTF-8 with no control characters but those that file(1) lets pass: BEL BS HT LF VT FF CR ESC. */
static bool is_text(cp_str head, bool whole) {
    for (size_t i = 0; i < head.n; i++) {
        unsigned char c = (unsigned char)head.p[i];
        if (c < 0x20 && !(c >= 7 && c <= 13) && c != 27) return false;
    }
    size_t n = whole ? head.n : head.n - cp_utf8_tail(head.p, head.n);
    return cp_utf8_valid(head.p, n);
}

static const char *by_content(cp_str head, bool whole) {
    if (head.n == 0) return "inode/x-empty";
    /* file(1) calls any single byte data; its clients see base64 there. */
    if (head.n == 1 && whole) return "application/octet-stream";
    const char *type = by_magic(head);
    if (!type) type = by_elf(head);
    if (type) return type;
    if (!is_text(head, whole)) return "application/octet-stream";
    type = by_script(head);
    if (!type) type = by_markup(head);
    return type ? type : "text/plain";
}

const char *cp_mime_of(cp_str name, cp_str head, bool whole) {
    const char *type = cp_mime_by_name(name);
    return type ? type : by_content(head, whole);
}

bool cp_mime_binary(const char *type) {
    static const char *const texts[] = {
        "application/ecmascript",    "application/javascript",
        "application/json",          "application/json-seq",
        "application/rtf",           "application/sql",
        "application/toml",          "application/typescript",
        "application/x-empty",       "application/x-httpd-php",
        "application/x-javascript",  "application/x-sh",
        "application/x-shellscript", "application/x-typescript",
        "application/x-yaml",        "application/xml",
        "application/xml-dtd",       "application/xml-external-parsed-entity",
        "application/yaml",          "inode/x-empty",
    };
    size_t n = strlen(type);
    if (strncmp(type, "text/", 5) == 0) return false;
    if (n > 5 && strcmp(type + n - 5, "+json") == 0) return false;
    if (n > 4 && strcmp(type + n - 4, "+xml") == 0) return false;
    for (size_t i = 0; i < CP_COUNT(texts); i++)
        if (strcmp(type, texts[i]) == 0) return false;
    return true;
}
