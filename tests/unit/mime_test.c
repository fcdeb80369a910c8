#include "services/mime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

/* What the SDK's server answered for files of these names and sizes with plain text in them. */
static const struct row {
    const char *name, *type;
    bool binary;
    size_t size;
} table[] = {
    /* clang-format off */
    {"x.json", "application/json", false, 7},
    {"x.html", "text/html", false, 3},
    {"x.js", "text/javascript", false, 5},
    {"x.ts", "text/javascript", false, 5},
    {"x.py", "text/plain", false, 8},
    {"x.md", "text/markdown", false, 4},
    {"x.css", "text/css", false, 3},
    {"x.svg", "image/svg+xml", false, 41},
    {"x.xml", "application/xml", false, 25},
    {"x.yaml", "text/yaml", false, 4},
    {"x.toml", "application/toml", false, 3},
    {"x.csv", "text/csv", false, 3},
    {"x.sh", "application/x-sh", false, 10},
    {"x.c", "text/x-c", false, 9},
    {"noext", "text/plain", false, 5},
    {"empty", "inode/x-empty", false, 0},
    {"x.unknownext", "text/plain", false, 4},
    {"x.png", "image/png", true, 1},
    {"x.pdf", "application/pdf", true, 8},
    {"x.zip", "application/zip", true, 2},
    {"x.wasm", "application/wasm", true, 1},
    {"x.jsx", "text/javascript", false, 1},
    {"x.tsx", "text/javascript", false, 1},
    {"x.log", "text/plain", false, 1},
    {"x.sql", "application/x-sql", true, 1},
    {"x.rs", "application/rls-services+xml", false, 2},
    {"x.go", "text/plain", false, 7},
    {"Dockerfile", "text/plain", false, 6},
    {".gitignore", "application/octet-stream", true, 1},
    {"x.mjs", "text/javascript", false, 1},
    {"x.cjs", "text/javascript", false, 1},
    {"x.jpg", "image/jpeg", true, 1},
    {"x.gif", "image/gif", true, 1},
    {"x.mp4", "video/mp4", true, 1},
    {"x.txt", "text/plain", false, 1},
    {"x.ini", "text/plain", false, 1},
    {"x.conf", "text/plain", false, 1},
    {"x.java", "text/x-java-source", false, 1},
    {"x.rb", "application/octet-stream", true, 1},
    {"x.php", "application/x-httpd-php", false, 1},
    {"x.bin", "application/octet-stream", true, 1},
    {"x.tar", "application/x-tar", true, 1},
    {"x.gz", "application/gzip", true, 1},
    {"x.ico", "image/x-icon", true, 1},
    {"x.webp", "image/webp", true, 1},
    {"x.woff2", "font/woff2", true, 1},
    {"x.ttf", "font/ttf", true, 1},
    {"x.mp3", "audio/mpeg", true, 1},
    {"x.wav", "audio/x-wav", true, 1},
    {"x.jsonl", "application/json", false, 2},
    {"x.ndjson", "application/json", false, 2},
    {"x.map", "application/json", false, 2},
    {"x.lock", "application/octet-stream", true, 1},
    {"x.env", "text/plain", false, 3},
    {"x.yml", "text/yaml", false, 4},
    {"x.cpp", "text/x-c", false, 1},
    {"x.h", "text/x-c", false, 1},
    {"x.bash", "application/octet-stream", true, 1},
    {"x.tex", "application/x-tex", true, 1},
    {"x.rst", "application/octet-stream", true, 1},
    {"x.ipynb", "application/json", false, 2},
    {"x.diff", "application/octet-stream", true, 1},
    {"x.vue", "application/octet-stream", true, 1},
    {"x.scss", "text/x-scss", false, 1},
    {"x.less", "text/less", false, 1},
    {"x.webm", "video/webm", true, 1},
    {"x.doc", "application/msword", true, 1},
    {"x.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document", true, 1},
    {"x.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", true, 1},
    {"x.7z", "application/x-7z-compressed", true, 1},
    {"x.exe", "application/x-msdownload", true, 1},
    {"x.so", "application/octet-stream", true, 1},
    {"x.class", "application/java-vm", true, 1},
    {"x.jar", "application/java-archive", true, 1},
    {"x.avif", "image/avif", true, 1},
    {"x.bmp", "image/x-ms-bmp", true, 1},
    {"x.tiff", "image/tiff", true, 1},
    {"x.rtf", "text/rtf", false, 1},
    {"x.xhtml", "application/xhtml+xml", false, 1},
    {"x.ics", "text/calendar", false, 1},
    {"x.vcf", "text/x-vcard", false, 1},
    {"x.TXT", "text/plain", false, 1},
    {"x.htm", "text/html", false, 1},
    {"x.jpeg", "image/jpeg", true, 1},
    {"x.mov", "video/quicktime", true, 1},
    {"x.ogg", "audio/ogg", true, 1},
    {"x.flac", "audio/x-flac", true, 1},
    {"x.eot", "application/vnd.ms-fontobject", true, 1},
    {"x.otf", "font/otf", true, 1},
    {"x.woff", "font/woff", true, 1},
    {"x.swf", "application/x-shockwave-flash", true, 1},
    {"x.epub", "application/epub+zip", true, 1},
    {"x.jsonc", "application/json", false, 2},
    {"x.json5", "application/json5", true, 2},
    {"x.webmanifest", "application/manifest+json", false, 2},
    {"x.text", "text/plain", false, 1},
    {"x.properties", "application/octet-stream", true, 1},
    {"x.proto", "application/octet-stream", true, 1},
    {"x.graphql", "application/octet-stream", true, 1},
    {"x.lua", "text/x-lua", false, 1},
    {"x.pl", "application/x-perl", true, 1},
    {"x.kt", "application/octet-stream", true, 1},
    {"x.swift", "application/octet-stream", true, 1},
    {"x.scala", "application/octet-stream", true, 1},
    {"x.r", "application/octet-stream", true, 1},
    {"x.tf", "application/octet-stream", true, 1},
    {"x.patch", "application/octet-stream", true, 1},
    {"x.asc", "application/pgp-signature", true, 1},
    {"x.pem", "application/x-x509-ca-cert", true, 1},
    /* clang-format on */
};

static void the_recorded_table_holds(void **state) {
    (void)state;
    char text[64];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < CP_COUNT(table); i++) {
        const struct row *r = &table[i];
        const char *type = cp_mime_of(cp_str_of(r->name), (cp_str){text, r->size}, true);
        if (strcmp(type, r->type) != 0) fail_msg("%s: %s, not %s", r->name, type, r->type);
        if (cp_mime_binary(type) != r->binary) fail_msg("%s: binary", r->name);
    }
}

static void extensions_are_sorted(void **state) {
    (void)state;
    static const char *const exts[] = {
#define X(ext, type) ext,
#include "schema/mime.def"
#undef X
    };
    for (size_t i = 1; i < CP_COUNT(exts); i++) assert_true(strcmp(exts[i - 1], exts[i]) < 0);
}

#define SNIFF(lit) cp_mime_of(CP_STR("noext"), (cp_str){lit, sizeof(lit) - 1}, true)

static void content_decides_without_extension(void **state) {
    (void)state;
    assert_string_equal(SNIFF(""), "inode/x-empty");
    assert_string_equal(SNIFF("h\xc3\xa9llo\n"), "text/plain");
    assert_string_equal(SNIFF("a\0b"), "application/octet-stream");
    assert_string_equal(SNIFF("caf\xe9 latin"), "application/octet-stream");
    assert_string_equal(SNIFF("a\x01z"), "application/octet-stream");
    assert_string_equal(SNIFF("\x1b[1mbold\x1b[0m\n"), "text/plain");
    assert_string_equal(SNIFF("#!/bin/bash\necho"), "text/x-shellscript");
    assert_string_equal(SNIFF("#!/usr/bin/env python3\n"), "text/x-script.python");
    assert_string_equal(SNIFF("#!/usr/bin/env node\n"), "application/javascript");
    assert_string_equal(SNIFF("#!/opt/own\n"), "text/plain");
    assert_string_equal(SNIFF("<?xml version=\"1.0\"?>"), "text/xml");
    assert_string_equal(SNIFF("\n<!DOCTYPE HTML>"), "text/html");
}

static void magic_numbers(void **state) {
    (void)state;
    assert_string_equal(SNIFF("\x89PNG\r\n\x1a\n...."), "image/png");
    assert_string_equal(SNIFF("GIF89a...."), "image/gif");
    assert_string_equal(SNIFF("\xff\xd8\xff\xe0"), "image/jpeg");
    assert_string_equal(SNIFF("RIFF\x10\0\0\0WEBPVP8 "), "image/webp");
    assert_string_equal(SNIFF("%PDF-1.7\n"), "application/pdf");
    assert_string_equal(SNIFF("PK\x03\x04\x14"), "application/zip");
    assert_string_equal(SNIFF("\x1f\x8b\x08"), "application/gzip");
    assert_string_equal(SNIFF("\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0"), "application/x-executable");
    assert_string_equal(SNIFF("\177ELF\2\2\1\0\0\0\0\0\0\0\0\0\0\3"), "application/x-sharedlib");
    assert_string_equal(SNIFF("\177ELF\2"), "application/octet-stream"); /* cut */
}

/* A head that ends inside a character is text when there is more, and is not when that is all. */
static void cut_head(void **state) {
    (void)state;
    assert_string_equal(cp_mime_of(CP_STR("n"), CP_STR("ab\xe2\x82"), false), "text/plain");
    assert_string_equal(cp_mime_of(CP_STR("n"), CP_STR("ab\xe2\x82"), true), "application/octet-stream");
}

static void names_without_extension(void **state) {
    (void)state;
    assert_null(cp_mime_by_name(CP_STR("")));
    assert_null(cp_mime_by_name(CP_STR("json")));
    assert_null(cp_mime_by_name(CP_STR("a.")));
    assert_null(cp_mime_by_name(CP_STR("a.averyveryverylongextension")));
    assert_string_equal(cp_mime_by_name(CP_STR("a.tar.gz")), "application/gzip");
    assert_string_equal(cp_mime_by_name(CP_STR("A.JSON")), "application/json");
}

static void text_types(void **state) {
    (void)state;
    assert_false(cp_mime_binary("text/anything"));
    assert_false(cp_mime_binary("application/ld+json"));
    assert_false(cp_mime_binary("image/svg+xml"));
    assert_false(cp_mime_binary("inode/x-empty"));
    assert_true(cp_mime_binary("application/jsonx"));
    assert_true(cp_mime_binary("image/png"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorded_table_holds),
        cmocka_unit_test(extensions_are_sorted),
        cmocka_unit_test(content_decides_without_extension),
        cmocka_unit_test(magic_numbers),
        cmocka_unit_test(cut_head),
        cmocka_unit_test(names_without_extension),
        cmocka_unit_test(text_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
